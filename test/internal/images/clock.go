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

// ClockFile is where programs in containers with [Builder.Clocks] find by how
// many microseconds their wall clocks are ahead of the machine's: an int64 in
// the byte order of the machine. They map the file when they start.
const ClockFile = "/data/clock"

// RedisClock is the library of package redistest in the Redis image.
const RedisClock = "/lib/clock.so"

//go:embed testdata/offset.go.txt
var offsetSource []byte

// clockOverlay is the file of an overlay (go help build) in which [time.Now]
// adds what [ClockFile] has. A program in Go reads the clock without libc, so
// nothing can be preloaded, and a time namespace has no wall clock.
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
		tb.Fatalf("time.Now of %s is not as this test knows it", runtime.Version())
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
