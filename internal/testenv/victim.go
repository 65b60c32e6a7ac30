package testenv

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// KilledAfter starts the test program again as a victim, with more environment variables,
// kills it after it wrote n lines, and returns all lines that it wrote.
func KilledAfter(t *testing.T, n int, env ...string) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			break // an incomplete line is no confirmation
		}
		if lines = append(lines, strings.TrimSpace(line)); len(lines) == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || len(lines) < n {
		t.Fatalf("the victim ended by itself after %d lines: %v", len(lines), err)
	}
	return lines
}
