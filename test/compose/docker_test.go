//go:build compose

// Package compose starts docker-compose.yml as an operator would and breaks
// it. It knows the HTTP API and the docker commands, nothing else. It needs
// docker, so it only runs with the build tag: make compose-test.
package compose

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// commandTimeout bounds one docker command; builds of images included.
const commandTimeout = 3 * time.Minute

// try runs a program and returns what it wrote on both streams.
func try(env []string, dir, program string, args ...string) (string, error) {
	// Not the test's context: what is cleaned up comes after its end.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(nil, "", "docker", args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// require is [testenv.Missing] without docker.
func require(t *testing.T) {
	t.Helper()
	_, err := try(nil, "", "docker", "version")
	if err == nil {
		_, err = try(nil, "", "docker-compose", "version")
	}
	if err != nil {
		testenv.Missing(t, "docker", "docker and docker-compose are needed: %v", err)
	}
}
