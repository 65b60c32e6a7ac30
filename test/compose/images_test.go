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

// made are the names of the images that the test built.
type made struct{ server, agent string }

func buildImages(t *testing.T) made {
	t.Helper()
	server, agent := images.Builder{}.Procfleet(t, fmt.Sprintf(":compose-test-%d", os.Getpid()), "id", "sleep", "cat", "cp", "mkdir")
	// These images have the names in the file. The test does not replace an
	// existing image, which is the published one.
	if name := imageOf(t, "nats"); !images.There(name) {
		images.Builder{}.NATS(t, name)
	}
	if name := imageOf(t, "redis"); !images.There(name) {
		images.Builder{}.Redis(t, name)
	}
	return made{server: server, agent: agent}
}

// imageOf returns the image in docker-compose.yml for a service. The image has the
// service's name.
func imageOf(t *testing.T, service string) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s+image: (` + service + `:\S+)$`).FindSubmatch(file)
	if found == nil {
		t.Fatalf("no image of %s in docker-compose.yml", service)
	}
	return string(found[1])
}
