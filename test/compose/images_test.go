//go:build compose

package compose

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// images are built from what is on this machine, so that the test needs no
// registry: binaries of this module, and programs with their libraries.
type images struct {
	server, agent string // names of their own, so that nobody's are replaced
}

func buildImages(t *testing.T) images {
	t.Helper()
	tag := fmt.Sprintf(":compose-test-%d", os.Getpid())
	made := images{server: "procfleet" + tag, agent: "procfleet-agent" + tag}

	root := t.TempDir()
	goBuild(t, filepath.Join(root, "bin")+"/", "./cmd/...")
	for _, name := range []string{"deploy/Dockerfile", ".dockerignore", "deploy/var/README"} {
		copyFile(t, filepath.Join(testenv.ModuleRoot(), name), filepath.Join(root, name))
	}
	base := "procfleet-agent-base" + tag
	buildImage(t, base, programsRoot(t, "sh", "id", "sleep", "cat", "cp", "mkdir"))
	for target, name := range map[string]string{"server": made.server, "agent": made.agent} {
		removeLater(t, name)
		args := []string{"build", "-q", "-f", "deploy/Dockerfile", "--target", target, "--build-arg", "AGENT_BASE=" + base, "-t", name, "."}
		if _, err := try(nil, root, "docker", args...); err != nil {
			t.Fatal(err)
		}
	}

	// These have the names that the file uses. One that is here already is the
	// real thing, and better.
	if name := imageOf(t, "nats"); !there(name) {
		root := t.TempDir()
		goBuild(t, filepath.Join(root, "nats-server"), "github.com/nats-io/nats-server/v2")
		buildImage(t, name, root, `ENTRYPOINT ["/nats-server"]`)
	}
	if name := imageOf(t, "redis"); !there(name) {
		buildImage(t, name, programsRoot(t, "redis-server", "redis-cli"))
	}
	return made
}

// imageOf is the image that docker-compose.yml names for a service whose
// image has the service's name.
func imageOf(t *testing.T, service string) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s+image: (` + service + `:\S+)$`).FindSubmatch(file)
	if found == nil {
		t.Fatalf("docker-compose.yml names no image of %s", service)
	}
	return string(found[1])
}

func there(image string) bool {
	_, err := try(nil, "", "docker", "image", "inspect", image)
	return err == nil
}

func removeLater(t *testing.T, image string) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := try(nil, "", "docker", "rmi", "-f", image); err != nil {
			t.Log(err)
		}
	})
}

// buildImage makes an image of a folder; it goes with the test.
func buildImage(t *testing.T, name, root string, more ...string) {
	t.Helper()
	removeLater(t, name)
	file := filepath.Join(t.TempDir(), "Dockerfile")
	text := "FROM scratch\nCOPY . /\n" + strings.Join(more, "\n") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	docker(t, "build", "-q", "-f", file, "-t", name, root)
}

func goBuild(t *testing.T, to, pkg string) {
	t.Helper()
	if out, err := try([]string{"CGO_ENABLED=0"}, testenv.ModuleRoot(), "go", "build", "-trimpath", "-o", to, pkg); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

var library = regexp.MustCompile(`(?m)(/\S+) \(0x`)

// programsRoot is a root folder with programs of this machine, the shared
// libraries that they need, and the few files that a system is expected to have.
func programsRoot(t *testing.T, programs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		copyFile(t, path, filepath.Join(root, "bin", program))
		needs, err := try(nil, "", "ldd", path)
		if err != nil {
			t.Logf("taken as static: %v", err)
			continue
		}
		for _, l := range library.FindAllStringSubmatch(needs, -1) {
			copyFile(t, l[1], filepath.Join(root, l[1]))
		}
	}
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"} {
		write(t, filepath.Join(root, name), []byte(text), 0o644)
	}
	for _, dir := range []string{"root", "tmp", "srv"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from) // through links
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, data, 0o755)
}

func write(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
}
