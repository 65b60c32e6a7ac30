package proc

import (
	"context"
	"os/exec"
	"strings"
	"time"
)

// askHost runs one of the host's own lookup programs and returns its output
// without the final newline.
func askHost(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // getent and id, no shell; names beginning with "-" are refused before
	cmd.Env = []string{"PATH=" + defaultPath, "LC_ALL=C"}
	// These programs do not daemonize; the delay is for one that hangs in the
	// kernel and cannot be killed.
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	return strings.TrimRight(string(out), "\n"), err
}
