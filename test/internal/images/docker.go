package images

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

// commandTimeout bounds one command; builds of images included.
const commandTimeout = 10 * time.Minute

// Command is a program to run, such as docker.
type Command struct {
	Env []string // added to this process's environment, "KEY=value"
	Dir string   // default: where this process is
}

// Run runs a program for at most 10 minutes and returns what it wrote on both
// streams, which an error has too.
func (c Command) Run(program string, args ...string) (string, error) {
	// Not a test's context: what is cleaned up comes after its end.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

// Docker runs docker and returns what it wrote, without the end of the line.
func Docker(args ...string) (string, error) {
	out, err := Command{}.Run("docker", args...)
	return strings.TrimSpace(out), err
}

// Require is [testenv.Missing] where one of the programs, say docker or
// docker-compose, does not answer for its version.
func Require(tb testing.TB, programs ...string) {
	tb.Helper()
	for _, program := range programs {
		if _, err := (Command{}).Run(program, "version"); err != nil {
			testenv.Missing(tb, "docker", "%s is needed: %v", program, err)
		}
	}
}
