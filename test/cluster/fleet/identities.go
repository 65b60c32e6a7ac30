//go:build linux

package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// AddKey adds a key to the fleet's, which becomes the newest, and returns when
// every dispatcher and worker has it.
func (f *Fleet) AddKey(ctx context.Context) error {
	if _, err := f.Operate(ctx, "fleet-key", "add", "--fleet-key", "/fleet/"+keyFile); err != nil {
		return err
	}
	return f.bring(ctx, Dispatcher, Worker, Light)
}

// RemoveKey takes the oldest of the fleet's keys away, and returns when no
// dispatcher or worker has it.
func (f *Fleet) RemoveKey(ctx context.Context) error {
	keys, err := f.Operate(ctx, "fleet-key", "list", "--fleet-key", "/fleet/"+keyFile)
	if err != nil {
		return err
	}
	ids := strings.Fields(keys)
	if _, err := f.Operate(ctx, "fleet-key", "remove", ids[len(ids)-1], "--fleet-key", "/fleet/"+keyFile); err != nil {
		return err
	}
	return f.bring(ctx, Dispatcher, Worker)
}

// Enroll enrolls all hosts, and returns when every agent has its identity.
func (f *Fleet) Enroll(ctx context.Context) error {
	if err := f.enroll(ctx); err != nil {
		return err
	}
	return f.bring(ctx, Agent)
}

// Revoke makes the identities of agents' hosts worthless, and returns when NATS
// has sent the agents away and no dispatcher or worker believes them. With
// Enroll they come back.
func (f *Fleet) Revoke(ctx context.Context, agents ...*Node) error {
	args := []string{"revoke", "--data", "/fleet", "--nats", f.NATSURLs()[0], "--nats-ca", "/fleet/ca.pem"}
	for _, n := range agents {
		args = append(args, "--host", n.Host)
	}
	if _, err := f.Operate(ctx, args...); err != nil {
		return err
	}
	leaf := "tls://" + f.Node("leaf").IP + ":4222" // hears of it by itself alone
	if _, err := f.Operate(ctx, "nats-auth", "push", "--nats-auth", "/fleet/nats-auth", "--nats", leaf, "--nats-ca", "/fleet/ca.pem"); err != nil {
		return err
	}
	if err := f.bring(ctx, Dispatcher, Worker); err != nil {
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

// bring brings nodes of these kinds their keys, and returns when they have
// read them.
func (f *Fleet) bring(ctx context.Context, kinds ...Kind) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return f.each(f.Nodes(kinds...), func(n *Node) error {
		before, err := n.timesRead(ctx)
		if err != nil {
			return err
		}
		if err := f.giveKeys(n); err != nil {
			return err
		}
		return until(ctx, func() error {
			now, err := n.timesRead(ctx)
			if err == nil && now == before {
				err = errors.New(n.Name + " does not read its keys again")
			}
			return err
		})
	})
}

// timesRead is how often a node has said that it read its keys again.
func (n *Node) timesRead(ctx context.Context) (int, error) {
	logs, err := run(ctx, "docker", "logs", n.container())
	return strings.Count(logs, "key file reloaded"), err
}
