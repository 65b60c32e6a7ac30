//go:build linux

package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// Key files in a node's folder.
const (
	keyFile      = "fleet.key"
	serverCreds  = "server.creds"
	leafCreds    = "leaf.creds"
	identityFile = "identity.yaml"
)

// Certificate files in a node's folder.
const (
	caFile      = "tls/ca.pem"
	certFile    = "tls/node.pem"
	privateFile = "tls/node.key"
)

// serverUser is the user of the server's image.
const serverUser = 65532

// keysDir is the operator's folder: the fleet keys, the NATS authority, and the
// credentials created for the nodes. No node has it.
const keysDir = "keys"

// RunAsOperator runs a command of procfleet in the fleet's network and returns its
// output. The folder /fleet contains fleet.key, nats-auth, identities and ca.pem.
func (f *Fleet) RunAsOperator(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "docker", append([]string{
		"run", "--rm", "--name", f.name + "-operator", "--user", "0:0", "--network", f.near, "--volume", f.path(keysDir) + ":/fleet",
		f.cfg.Images.Server,
	}, args...)...)
}

// certify creates certificates for all nodes with their addresses.
func (f *Fleet) certify(tb testing.TB) {
	tb.Helper()
	f.ca, f.certs = tlstest.NewCA(tb, f.name), map[*Node]tlstest.Pair{}
	for _, n := range f.nodes {
		var addresses []string
		for _, p := range n.ports {
			addresses = append(addresses, p.ip)
		}
		f.certs[n] = f.ca.Issue(tb, n.Name, tlstest.At(addresses...))
	}
}

// makeKeys creates the fleet keys and the NATS users, as in
// docs/how-to/add-a-host.md.
func (f *Fleet) makeKeys(ctx context.Context) error {
	if err := os.MkdirAll(f.path(keysDir), 0o700); err != nil {
		return err
	}
	authority, err := os.ReadFile(f.ca.File)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.path(keysDir, "ca.pem"), authority, 0o600); err != nil {
		return err
	}
	var hosts strings.Builder
	for _, n := range f.Nodes(Agent) {
		fmt.Fprintln(&hosts, n.Host)
	}
	if err := os.WriteFile(f.path(keysDir, "hosts.txt"), []byte(hosts.String()), 0o600); err != nil {
		return err
	}
	if err := f.enroll(ctx, "--create"); err != nil {
		return err
	}
	for role, file := range map[string]string{"leaf": leafCreds, "producer": producerCreds} {
		text, err := f.RunAsOperator(ctx, "nats-auth", "user", role, "--cloud", fmt.Sprint(FarArea), "--nats-auth", "/fleet/nats-auth")
		if err != nil {
			return err
		}
		if err := os.WriteFile(f.path(keysDir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) enroll(ctx context.Context, more ...string) error {
	_, err := f.RunAsOperator(ctx, append([]string{"enroll", "--data", "/fleet", "--hosts-file", "/fleet/hosts.txt", "--out", "/fleet/identities/"}, more...)...)
	return err
}

// producerCreds is the credentials file of the NATS user that publishes
// submissions.
const producerCreds = "producer.creds"

// CA returns the file of the authority that signed the certificates of all nodes.
func (f *Fleet) CA() string { return f.ca.File }

// Producer returns the credentials of a NATS user that may publish submissions.
func (f *Fleet) Producer() ([]byte, error) { return os.ReadFile(f.path(keysDir, producerCreds)) }

// Server returns the credentials of the NATS user of dispatchers and workers.
func (f *Fleet) Server() ([]byte, error) {
	return os.ReadFile(f.path(keysDir, "nats-auth", serverCreds))
}

// copyKeys copies the keys and certificates of a node into its folder, also while
// the node runs.
func (f *Fleet) copyKeys(n *Node) error {
	files := map[string]string{caFile: f.ca.File, certFile: f.certs[n].Cert, privateFile: f.certs[n].Key}
	switch n.Kind {
	case NATS:
		files["broker/broker.conf"] = f.path(keysDir, "nats-auth/broker.conf")
	case Leaf:
		files["broker/broker.conf"] = f.path(keysDir, "nats-auth/broker.conf")
		files[leafCreds] = f.path(keysDir, leafCreds)
	case Dispatcher, Worker, Light:
		files[keyFile] = f.path(keysDir, keyFile)
		files[serverCreds] = f.path(keysDir, "nats-auth", serverCreds)
	case Redis, Sentinel: // their configuration contains their users
	case Agent:
		files[identityFile] = f.path(keysDir, "identities", strings.ReplaceAll(n.Host, ":", "-")+".yaml")
	}
	for to, from := range files {
		if err := f.copyFile(n, from, to); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file into a node's folder, and replaces an existing file
// atomically.
func (f *Fleet) copyFile(n *Node, from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	file := f.path(n.Name, "data", to)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	if n.Kind == Dispatcher || n.Kind == Worker || n.Kind == Light {
		if err := os.Chown(file+".new", serverUser, serverUser); err != nil {
			return err
		}
	}
	return os.Rename(file+".new", file)
}
