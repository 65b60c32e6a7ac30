//go:build linux

// Package transport tests from outside what stands between procfleet and those
// who mean harm: TLS on every connection, what a listener does with requests
// that no client would send, and what can be read in logs. The binaries are
// the built ones, the servers real.
package transport

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}

// patience is for what a busy machine needs with the race detector on.
const patience = 60 * time.Second

func program(t *testing.T) string {
	t.Helper()
	return testenv.BuildBinary(t, "./cmd/procfleet")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.FreePort(t)))
}

// said is what a command that ended has written, and its exit code.
type said struct {
	out, err string
	code     int
}

// run runs a command to its end.
func run(t *testing.T, args ...string) said {
	t.Helper()
	binary := program(t) // building it takes its own time
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	} else if ok {
		return said{out.String(), stderr.String(), exit.ExitCode()}
	}
	return said{out.String(), stderr.String(), 0}
}
