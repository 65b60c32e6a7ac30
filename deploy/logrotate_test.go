package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogrotateRenamesTheAuditLog checks that the configuration renames the file
// and keeps its mode: any other rotation loses records or exposes the file. If
// logrotate is installed, the test rotates a file; internal/audit tests the
// reaction to a renamed file.
func TestLogrotateRenamesTheAuditLog(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("logrotate-procfleet")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); !strings.HasPrefix(word, "#") {
			said[word] = true
		}
	}
	for word, want := range map[string]bool{"nocreate": true, "delaycompress": true, "copytruncate": false, "create": false, "/var/log/procfleet/*.jsonl": true} {
		if said[word] != want {
			t.Errorf("the configuration sets %s: %v", word, said[word])
		}
	}
	for _, unit := range []string{"procfleet-dispatcher.service", "procfleet-worker.service"} {
		// The unit creates this folder for the role, which may write nowhere else.
		if text, err := os.ReadFile(unit); err != nil || !strings.Contains(string(text), "\nLogsDirectory=procfleet\n") {
			t.Errorf("%s has no folder /var/log/procfleet, %v", unit, err)
		}
	}
	program, err := exec.LookPath("logrotate")
	if err != nil {
		return
	}
	dir := t.TempDir()
	conf, log := filepath.Join(dir, "conf"), filepath.Join(dir, "audit.jsonl")
	err = errors.Join(os.WriteFile(log, []byte("{}\n"), 0o600), os.WriteFile(conf, []byte(strings.ReplaceAll(string(text), "/var/log/procfleet", dir)), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program, "--force", "--state", filepath.Join(dir, "state"), conf).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(log + ".1"); err != nil {
		t.Error(err)
	}
}
