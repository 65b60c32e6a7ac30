//go:build linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// cloneIP is the last number of a clone's address; no node has it.
const cloneIP = 200

// Clone copies the folder and the identity of a running agent, and starts a second
// agent with the copy at another address. The commands of both agents write their
// marks into one folder. remove removes the clone.
func (f *Fleet) Clone(ctx context.Context, n *Node) (remove func() error, err error) {
	copied, name := f.path(n.Name, "clone"), n.container()+"-clone"
	if _, err := run(ctx, "cp", "-a", f.path(n.Name, "data"), copied); err != nil {
		return nil, err
	}
	at := n.ports[0]
	image, command := f.command(n)
	args := []string{
		"run", "--detach", "--init", "--name", name, "--hostname", n.Name, "--restart", "no", "--network", at.network,
		"--ip", fmt.Sprintf("%s.%d", at.ip[:strings.LastIndex(at.ip, ".")], cloneIP),
		"--volume", copied + ":/data", "--volume", n.marks + ":" + MarkFolder,
	}
	_, err = run(ctx, "docker", append(append(args, image), command...)...)
	return func() error {
		logs, err := run(ctx, "docker", "logs", "--tail", "20", name)
		if err == nil {
			f.log("%s said:\n%s", name, logs)
		}
		_, removed := run(context.WithoutCancel(ctx), "docker", "rm", "--force", "--volumes", name)
		return errors.Join(err, removed)
	}, err
}
