//go:build linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// AddKey adds a fleet key, which becomes the newest, and returns when every
// dispatcher and worker has read it.
func (f *Fleet) AddKey(ctx context.Context) error {
	if _, err := f.RunAsOperator(ctx, "fleet-key", "add", "--fleet-key", "/fleet/"+keyFile); err != nil {
		return err
	}
	return f.distributeKeys(ctx, Dispatcher, Worker, Light)
}

// RemoveKey removes the oldest fleet key, and returns when every dispatcher and
// worker has read the file without it.
func (f *Fleet) RemoveKey(ctx context.Context) error {
	keys, err := f.RunAsOperator(ctx, "fleet-key", "list", "--fleet-key", "/fleet/"+keyFile)
	if err != nil {
		return err
	}
	ids := strings.Fields(keys)
	if _, err := f.RunAsOperator(ctx, "fleet-key", "remove", ids[len(ids)-1], "--fleet-key", "/fleet/"+keyFile); err != nil {
		return err
	}
	return f.distributeKeys(ctx, Dispatcher, Worker)
}

// Enroll enrolls all hosts, and returns when every agent has read its identity.
func (f *Fleet) Enroll(ctx context.Context) error {
	if err := f.enroll(ctx); err != nil {
		return err
	}
	return f.distributeKeys(ctx, Agent)
}

// Revoke revokes the identities of agents' hosts. It returns when NATS has
// disconnected the agents, and every dispatcher and worker has read the revocation.
// Enroll readmits the hosts.
func (f *Fleet) Revoke(ctx context.Context, agents ...*Node) error {
	args := []string{"revoke", "--data", "/fleet", "--nats", f.NATSURLs()[0], "--nats-ca", "/fleet/ca.pem"}
	for _, n := range agents {
		args = append(args, "--host", n.Host)
	}
	if _, err := f.RunAsOperator(ctx, args...); err != nil {
		return err
	}
	leaf := "tls://" + f.Node("leaf").IP + ":4222" // the other NATS servers do not inform the leaf node
	if _, err := f.RunAsOperator(ctx, "nats-auth", "push", "--nats-auth", "/fleet/nats-auth", "--nats", leaf, "--nats-ca", "/fleet/ca.pem"); err != nil {
		return err
	}
	if err := f.distributeKeys(ctx, Dispatcher, Worker); err != nil {
		return err
	}
	return until(ctx, func() error {
		for _, n := range agents {
			if f.ready(ctx, n) == nil {
				return fmt.Errorf("%s was revoked and is still connected", n)
			}
		}
		return nil
	})
}

// distributeKeys copies the keys of nodes of these kinds, and returns when the
// nodes have read them.
func (f *Fleet) distributeKeys(ctx context.Context, kinds ...Kind) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return f.each(f.Nodes(kinds...), func(n *Node) error {
		before, err := n.timesRead(ctx)
		if err != nil {
			return err
		}
		if err := f.copyKeys(n); err != nil {
			return err
		}
		return until(ctx, func() error {
			now, err := n.timesRead(ctx)
			if err == nil && now == before {
				err = errors.New(n.Name + " has not read its changed keys")
			}
			return err
		})
	})
}

// timesRead returns how often a node has logged that it read its keys again.
func (n *Node) timesRead(ctx context.Context) (int, error) {
	logs, err := run(ctx, "docker", "logs", n.container())
	return strings.Count(logs, "key file reloaded"), err
}
