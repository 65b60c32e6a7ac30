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

// commandTimeout limits one command, including the build of an image.
const commandTimeout = 10 * time.Minute

// Command is a program to run, such as docker.
type Command struct {
	Env []string // added to this process's environment, "KEY=value"
	Dir string   // default: the working directory of this process
}

// Run runs a program for at most 10 minutes, and returns its combined output, which
// an error also contains.
func (c Command) Run(program string, args ...string) (string, error) {
	// Do not use the context of a test: cleanup runs after its end.
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

// Docker runs docker and returns its output without the last line end.
func Docker(args ...string) (string, error) {
	out, err := Command{}.Run("docker", args...)
	return strings.TrimSpace(out), err
}

// Require calls [testenv.Missing] if one of the programs, such as docker or
// docker-compose, does not print its version.
func Require(tb testing.TB, programs ...string) {
	tb.Helper()
	for _, program := range programs {
		if _, err := (Command{}).Run(program, "version"); err != nil {
			testenv.Missing(tb, "docker", "%s is needed: %v", program, err)
		}
	}
}
