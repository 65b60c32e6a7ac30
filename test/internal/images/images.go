package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// There reports whether docker has an image.
func There(image string) bool {
	_, err := Docker("image", "inspect", image)
	return err == nil
}

// Build builds an image of a folder, with additional lines for its Dockerfile. It
// is removed at the end of the test.
func Build(tb testing.TB, name, root string, more ...string) {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "Dockerfile")
	write(tb, file, []byte("FROM scratch\nCOPY . /\n"+strings.Join(more, "\n")+"\n"), 0o600)
	build(tb, name, root, "-f", file)
}

// procfleetFiles are the files that deploy/Dockerfile copies in addition to the
// binaries.
var procfleetFiles = []string{"deploy/Dockerfile", ".dockerignore", "deploy/var/README"}

// Builder builds images of Go programs.
type Builder struct {
	// Clocks builds the programs with the wall clock of [ClockFile].
	Clocks bool
}

// Procfleet builds the images of this module's binaries with deploy/Dockerfile: the
// server, and the agent on a base with a shell and the given programs. All names
// end in tag, so that no other image is replaced. They are removed at the end of
// the test.
func (b Builder) Procfleet(tb testing.TB, tag string, programs ...string) (server, agent string) {
	tb.Helper()
	root := tb.TempDir()
	b.goBuild(tb, filepath.Join(root, "bin"), "./cmd/procfleet", "./cmd/procfleet-agent")
	for _, name := range procfleetFiles {
		copyFile(tb, filepath.Join(testenv.ModuleRoot(), name), filepath.Join(root, name))
	}
	base := "procfleet-agent-base" + tag
	Build(tb, base, programsRoot(tb, append([]string{"sh"}, programs...)...))
	server, agent = "procfleet"+tag, "procfleet-agent"+tag
	for target, name := range map[string]string{"server": server, "agent": agent} {
		build(tb, name, root, "-f", filepath.Join(root, "deploy/Dockerfile"), "--target", target, "--build-arg", "AGENT_BASE="+base)
	}
	return server, agent
}

// Bench builds an image of procfleet-bench, which has simulated agents.
func (b Builder) Bench(tb testing.TB, name string) {
	tb.Helper()
	root := tb.TempDir()
	b.goBuild(tb, root, "./cmd/procfleet-bench")
	Build(tb, name, root, "USER 65532:65532", `ENTRYPOINT ["/procfleet-bench"]`) // the user of the server's image owns the keys
}

// NATS builds an image of the nats-server in this module's go.mod.
func (b Builder) NATS(tb testing.TB, name string) {
	tb.Helper()
	root := tb.TempDir()
	b.goBuild(tb, root, "github.com/nats-io/nats-server/v2")
	Build(tb, name, root, `ENTRYPOINT ["/nats-server"]`)
}

// Redis builds an image of this machine's Redis.
func (b Builder) Redis(tb testing.TB, name string) {
	tb.Helper()
	root := programsRoot(tb, "redis-server", "redis-cli")
	if b.Clocks {
		copyFile(tb, redistest.BuildClock(tb).Library(), filepath.Join(root, RedisClock))
	}
	Build(tb, name, root)
}

func build(tb testing.TB, name, root string, args ...string) {
	tb.Helper()
	tb.Cleanup(func() {
		if _, err := Docker("rmi", "-f", name); err != nil {
			tb.Log(err)
		}
	})
	if _, err := Docker(append(append([]string{"build", "-q", "-t", name}, args...), root)...); err != nil {
		tb.Fatal(err)
	}
}

// goBuild builds main packages into a folder, without cgo, so that they run in an empty
// image. Programs without Clocks are those of all tests ([testenv.BuildBinary]).
func (b Builder) goBuild(tb testing.TB, to string, packages ...string) {
	tb.Helper()
	if !b.Clocks {
		for _, pkg := range packages {
			built := testenv.BuildBinary(tb, pkg)
			copyFile(tb, built, filepath.Join(to, filepath.Base(built)))
		}
		return
	}
	c := Command{Env: []string{"CGO_ENABLED=0"}, Dir: testenv.ModuleRoot()}
	args := []string{"build", "-trimpath", "-overlay", clockOverlay(tb), "-o", to + "/"}
	if _, err := c.Run("go", append(args, packages...)...); err != nil {
		tb.Fatal(err)
	}
}

var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// programsRoot creates a root folder with programs of this machine, their shared
// libraries, and the few files that every system has.
func programsRoot(tb testing.TB, programs ...string) string {
	tb.Helper()
	root := tb.TempDir()
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			tb.Fatal(err)
		}
		copyFile(tb, path, filepath.Join(root, "bin", program))
		needs, err := Command{}.Run("ldd", path)
		if err != nil {
			tb.Logf("considered static: %v", err)
			continue
		}
		for _, l := range library.FindAllStringSubmatch(needs, -1) {
			copyFile(tb, l[1], filepath.Join(root, l[1]))
		}
	}
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"} {
		write(tb, filepath.Join(root, name), []byte(text), 0o644)
	}
	for _, dir := range []string{"root", "tmp", "srv"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	return root
}

func copyFile(tb testing.TB, from, to string) {
	tb.Helper()
	data, err := os.ReadFile(from) // follows links
	if err != nil {
		tb.Fatal(err)
	}
	write(tb, to, data, 0o755)
}

func write(tb testing.TB, path string, data []byte, mode os.FileMode) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		tb.Fatal(err)
	}
}
