//go:build linux

// Package transport tests the protection against attackers from outside: TLS on
// every connection, malformed requests to listeners, and the contents of logs. It
// uses built binaries and real servers.
package transport

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// exitDown is the exit code of a status that every host answered, and whose process is down.
const exitDown = 4

func TestMain(m *testing.M) {
	defer testenv.CleanUp()
	m.Run()
}

// patience is the timeout for a busy machine with the race detector.
const patience = 60 * time.Second

func program(t *testing.T) string {
	t.Helper()
	return testenv.BuildBinary(t, "./cmd/procfleet")
}

// commandOutput is the output and the exit code of a command that has ended.
type commandOutput struct {
	out, err string
	code     int
}

// run runs a command until it ends.
func run(t *testing.T, args ...string) commandOutput {
	t.Helper()
	binary := program(t) // outside the timeout of the command
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	} else if ok {
		return commandOutput{out.String(), stderr.String(), exit.ExitCode()}
	}
	return commandOutput{out.String(), stderr.String(), 0}
}
