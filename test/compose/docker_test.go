//go:build compose

// Package compose starts docker-compose.yml as an operator would and breaks
// it. It knows the HTTP API and the docker commands, nothing else. It needs
// docker, so it only runs with the build tag: make compose-test.
package compose

import (
	"testing"

	"github.com/procfleet/procfleet/test/internal/images"
)

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := images.Docker(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
