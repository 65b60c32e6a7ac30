//go:build compose

package compose

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/test/internal/images"
)

// made are the names of images that the test built.
type made struct{ server, agent string }

func buildImages(t *testing.T) made {
	t.Helper()
	server, agent := images.Builder{}.Procfleet(t, fmt.Sprintf(":compose-test-%d", os.Getpid()), "id", "sleep", "cat", "cp", "mkdir")
	// These have the names that the file uses. One that is here already is the
	// real thing, and better.
	if name := imageOf(t, "nats"); !images.There(name) {
		images.Builder{}.NATS(t, name)
	}
	if name := imageOf(t, "redis"); !images.There(name) {
		images.Builder{}.Redis(t, name)
	}
	return made{server: server, agent: agent}
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
