package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyAPidFileWithoutALiveProcessIsMoved(t *testing.T) {
	t.Parallel()
	live := os.Getpid()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", live))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, reason string }{
		"no process":              {"4194303\n", ""},
		"no process on any line":  {"4194303\n4194302\n", ""},
		"live process":            {fmt.Sprintln(live), fmt.Sprintf("pid %d is a live process", live)},
		"live process on line 2":  {fmt.Sprintf("4194303\n%d\n", live), fmt.Sprintf("pid %d is a live process", live)},
		"thread":                  {threads[len(threads)-1].Name(), "is a live process"},
		"being written":           {"", "it is empty"},
		"replaced by another one": {"none\n", "it does not begin with a pid"},
	} {
		path := filepath.Join(t.TempDir(), "demo.pid")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := MoveDeadPidFile(path, "demo.pid.stale")
		if (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: error is %v, want %q", name, err, c.reason)
		}
		if _, missing := os.Stat(path); (missing != nil) != (c.reason == "") {
			t.Errorf("%s: moved is %t", name, missing != nil)
		}
	}
}
