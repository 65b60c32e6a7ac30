//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/fleetkey"
)

// keys are those of a fleet, in a file.
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

// write replaces the file at once.
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

// identity writes the identity that a host has now, and returns its file.
func (k *keys) identity(host string) string {
	k.t.Helper()
	file := filepath.Join(k.t.TempDir(), "identity.yaml")
	k.enroll(host, file)
	return file
}

// enroll writes the identity that a host has now into a file, at once.
func (k *keys) enroll(host, file string) {
	k.t.Helper()
	text, err := (&fleetkey.Identity{Host: k.ring().Host(host)}).Text()
	if err != nil {
		k.t.Fatal(err)
	}
	k.replace(file, text)
}
