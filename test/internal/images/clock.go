package images

import (
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// ClockFile is the file in containers of a [Builder] with Clocks that contains the
// offset of the wall clock from the machine's clock: an int64 of microseconds in
// native byte order. Programs map the file when they start.
const ClockFile = "/data/clock"

// RedisClock is the library of package redistest in the Redis image.
const RedisClock = "/lib/clock.so"

//go:embed testdata/offset.go.txt
var offsetSource []byte

// clockOverlay returns an overlay file (go help build) in which [time.Now] adds the
// offset in [ClockFile]. A Go program reads the clock without libc, so a preloaded
// library has no effect, and a time namespace has no offset for the wall clock.
func clockOverlay(tb testing.TB) string {
	tb.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		tb.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(goroot)), "src/time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		tb.Fatal(err)
	}
	const now, shifted = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "\tsec += clockOffset()\n"
	changed := strings.Replace(string(text), now, now+shifted, 1)
	if changed == string(text) {
		tb.Fatalf("unknown implementation of time.Now in %s", runtime.Version())
	}
	dir := tb.TempDir()
	files := map[string]string{}
	for name, text := range map[string][]byte{"time.go": []byte(changed), "offset.go": offsetSource} {
		files[filepath.Join(source, name)] = filepath.Join(dir, name)
		write(tb, filepath.Join(dir, name), text, 0o600)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		tb.Fatal(err)
	}
	write(tb, filepath.Join(dir, "overlay.json"), overlay, 0o600)
	return filepath.Join(dir, "overlay.json")
}
