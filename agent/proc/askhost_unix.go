//go:build unix

package proc

import "context"

// AskHost runs one of the host's own programs, in English and without a shell,
// and returns its standard output without the final newline.
func AskHost(ctx context.Context, program string, args ...string) (string, error) {
	return askHost(ctx, program, args...)
}
