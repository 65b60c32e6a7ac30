package fleetkey

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// ringText returns the content of a fleet key file with one key.
func ringText(t *testing.T, id string) []byte {
	t.Helper()
	text, err := yaml.Marshal(File{Keys: []Key{{ID: id, Secret: testSecrets[id]}}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// overwritten changes the content of a file in place, without a change of its modification time.
func overwritten(t *testing.T, path string, text []byte) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = errors.Join(os.WriteFile(path, text, 0o600), os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// replaced replaces a file by a new file with the same modification time.
func replaced(t *testing.T, path string, text []byte) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = errors.Join(os.WriteFile(path+".new", text, 0o600), os.Chtimes(path+".new", info.ModTime(), info.ModTime()), os.Rename(path+".new", path))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// believes reports whether a ring accepts signatures with the key id.
func believes(t *testing.T, r *Ring, id string) bool {
	t.Helper()
	signed := map[string][]string{}
	ring(t, nil, id).Sign(signed, host, message())
	return r.Verify(signed, host, message()) == nil
}

func TestAFileOfKeysIsInForceWhicheverWayItChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, path string){
		"another file of the same size and time": func(t *testing.T, path string) {
			t.Helper()
			replaced(t, path, ringText(t, "k2"))
		},
		"longer, at the same time": func(t *testing.T, path string) {
			t.Helper()
			overwritten(t, path, append(ringText(t, "k2"), "# longer\n"...))
		},
		"of the same size, later": func(t *testing.T, path string) {
			t.Helper()
			overwritten(t, path, ringText(t, "k2"))
			later := time.Now().Add(time.Hour)
			if err := os.Chtimes(path, later, later); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "fleet.key")
			if err := os.WriteFile(path, ringText(t, "k1"), 0o600); err != nil {
				t.Fatal(err)
			}
			w, err := OpenRing(path)
			if err != nil {
				t.Fatal(err)
			}
			if changed, err := w.refresh(); changed || err != nil {
				t.Errorf("nothing changed: %v, %v", changed, err)
			}
			change(t, path)
			if changed, err := w.refresh(); !changed || err != nil {
				t.Errorf("it changed: %v, %v", changed, err)
			}
			if !believes(t, w.Current(), "k2") || believes(t, w.Current(), "k1") {
				t.Error("what the file says now is not in force")
			}
			if changed, err := w.refresh(); changed || err != nil {
				t.Errorf("told twice: %v, %v", changed, err)
			}
		})
	}
}

func TestAFileOfKeysThatCannotBeUsedLeavesTheFormerInForce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fleet.key")
	if err := os.WriteFile(path, ringText(t, "k1"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := OpenRing(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		what string
		make func() error
	}{
		{"no ring", func() error { replaced(t, path, []byte("keys: [")); return nil }},
		{"one that everybody reads", func() error { return errors.Join(os.WriteFile(path, ringText(t, "k2"), 0o600), os.Chmod(path, 0o644)) }},
		{"none", func() error { return os.Remove(path) }},
	} {
		if err := bad.make(); err != nil {
			t.Fatal(err)
		}
		if changed, err := w.refresh(); changed || err == nil {
			t.Errorf("%s: %v, %v", bad.what, changed, err)
		}
		if !believes(t, w.Current(), "k1") {
			t.Errorf("%s: what was in force is not any more", bad.what)
		}
		if changed, err := w.refresh(); changed || err != nil {
			t.Errorf("%s is told twice: %v, %v", bad.what, changed, err)
		}
	}
	if err := os.WriteFile(path, ringText(t, "k2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := w.refresh(); !changed || err != nil || !believes(t, w.Current(), "k2") {
		t.Errorf("a good one again: %v, %v", changed, err)
	}
}

func TestTheIdentityOfAnotherHostIsNotTaken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "identity.yaml")
	identity := func(of string) []byte {
		text, err := (&Identity{Host: ring(t, nil, "k1").Host(of)}).Text()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if err := os.WriteFile(path, identity(host), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := OpenIdentity(path, host)
	if err != nil {
		t.Fatal(err)
	}
	replaced(t, path, identity("3:10.0.0.2"))
	if changed, err := w.refresh(); changed || err == nil || w.Current().Host.Name() != host {
		t.Errorf("%v, %v, it is now %s", changed, err, w.Current().Host.Name())
	}
	if _, err := OpenIdentity(path, host); err == nil {
		t.Error("it is taken at the start")
	}
}
