//go:build linux

package pressure

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/internal/testenv"
)

// disk mounts a small file system for a test.
func disk(t *testing.T, size string) (dir string) {
	t.Helper()
	testenv.NeedRoot(t)
	dir = t.TempDir()
	if err := unix.Mount("procfleet-test", dir, "tmpfs", 0, "size="+size); errors.Is(err, unix.EPERM) {
		testenv.Missing(t, "mount", "this needs the right to mount: %v", err)
	} else if err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill fills a disk; empty frees the space again.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1 << 20, 4 << 10} { // tmpfs allocates whole pages
		chunk := make([]byte, size)
		for err == nil {
			_, err = file.Write(chunk)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("fill %s: %v", dir, err)
		}
		err = nil
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUpOnAFullDisk fills the disk of the whole system. Callers must get a
// 503 with Retry-After, and stored data must stay readable. After space is freed
// and the system restarted, accepted tasks must end and new ones be accepted.
func TestUpOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := disk(t, "96m")
	addr := testenv.FreeAddress(t)
	bus := testenv.FreeAddress(t)
	data, dispatcherURL := filepath.Join(dir, "data"), "http://"+addr
	start := func() *testenv.Child {
		up := testenv.StartChild(t, nil, program(t), "up", "--agent=false", "--http", addr, "--nats-listen", bus, "--data", data, "--slack", "10m")
		up.WaitHTTP(t, patience, dispatcherURL+"/readyz")
		return up
	}
	up := start()
	const hosts = 250
	simulate := testenv.StartChild(t, nil, bench(t), "simulate", "--agents", strconv.Itoa(hosts), "--nats", "nats://"+bus,
		"--nats-creds", testenv.ServerCredentials(data), "--fleet-key", filepath.Join(data, "fleet.key"))
	simulate.WaitOutput(t, patience, "ready "+strconv.Itoa(hosts))
	first := accepts(t, dispatcherURL, operation(hosts, 0))
	succeeds(t, dispatcherURL, first, hosts)

	empty := fill(t, dir)
	var accepted []string
	refused := 0
	testenv.Eventually(t, patience, func() bool {
		a := post(dispatcherURL+"/v1/tasks", operation(hosts, 0))
		var made task
		switch {
		case a.status == http.StatusCreated && json.Unmarshal(a.body, &made) == nil:
			accepted = append(accepted, made.ID)
		case a.status == http.StatusServiceUnavailable && a.retry != "" && tryAgain.Match(a.body):
			refused++
		default:
			t.Fatalf("answered %d, Retry-After %q: %.300s", a.status, a.retry, a.body)
		}
		return refused >= 5
	}, "callers are turned away")
	if found := readTask(t, dispatcherURL, first); found.Counts["succeeded"] != hosts {
		t.Errorf("stored task is not readable: %+v", found)
	}
	empty()
	up.Kill() // NATS opens its files for writing again only at a start
	start()

	succeeds(t, dispatcherURL, accepts(t, dispatcherURL, operation(hosts, 0)), hosts)
	for _, id := range accepted {
		succeeds(t, dispatcherURL, id, hosts)
	}
	t.Logf("%d tasks were accepted while the disk was full", len(accepted))
}
