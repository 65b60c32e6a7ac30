//go:build linux

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// keys are the keys of a fleet in a file.
type keys struct {
	t    *testing.T
	file string
}

func newKeys(t *testing.T) *keys {
	t.Helper()
	k := &keys{t, filepath.Join(t.TempDir(), "fleet.key")}
	if err := fleetkey.Create(k.file); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *keys) ring() *fleetkey.Ring {
	k.t.Helper()
	ring, err := fleetkey.ReadRing(k.file)
	if err != nil {
		k.t.Fatal(err)
	}
	return ring
}

func (k *keys) content() fleetkey.File {
	k.t.Helper()
	var content fleetkey.File
	text, err := os.ReadFile(k.file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &content)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return content
}

// write replaces the file atomically.
func (k *keys) write(content fleetkey.File) {
	k.t.Helper()
	text, err := content.Text()
	if err != nil {
		k.t.Fatal(err)
	}
	k.replace(k.file, text)
}

func (k *keys) replace(file string, text []byte) {
	k.t.Helper()
	err := os.WriteFile(file+".new", text, 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// identity writes the current identity of a host, and returns its file.
func (k *keys) identity(host string) string { return k.identityAs(host, "") }

// identityAs is identity with an agent id.
func (k *keys) identityAs(host, agentID string) string {
	k.t.Helper()
	file := filepath.Join(k.t.TempDir(), "identity.yaml")
	k.enrollAs(host, agentID, file)
	return file
}

// natsUser returns the credentials of a host if a NATS authority is next to the
// keys, as in the data folder of `up`.
func (k *keys) natsUser(host string, generation int) string {
	k.t.Helper()
	dir := filepath.Join(filepath.Dir(k.file), "nats-auth")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	h, err := procfleet.ParseHost(host)
	if err != nil {
		k.t.Fatal(err)
	}
	authority, err := natsauth.Open(dir)
	if err != nil {
		k.t.Fatal(err)
	}
	credentials, err := authority.Enroll(&natsauth.HostUser{Cloud: int64(h.Cloud), Addr: h.Addr, Generation: generation}, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	return credentials
}

// enroll writes the current identity of a host into a file, atomically.
func (k *keys) enroll(host, file string) { k.enrollAs(host, "", file) }

func (k *keys) enrollAs(host, agentID, file string) {
	k.t.Helper()
	ring := k.ring()
	identity := fleetkey.Identity{Host: ring.Enroll(host, agentID), NATS: k.natsUser(host, ring.Generation(host))}
	text, err := identity.Text()
	if err != nil {
		k.t.Fatal(err)
	}
	k.replace(file, text)
}
