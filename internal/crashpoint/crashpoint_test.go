package crashpoint

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("CRASHPOINT_HELPER") != "" {
		reach := FromEnv()
		for _, point := range []string{"a", "b", "b", "c"} {
			_, _ = os.Stdout.WriteString(point)
			reach(point)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestProcessDiesExactlyAtTheNamedPoint(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{"a": "a", "b": "ab", "b:2": "abb", "c": "abbc", "d": "abbc", "": "abbc"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CRASHPOINT_HELPER=1", Variable+"="+at)
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); got != want {
			t.Errorf("%q: reached %q, want %q", at, got, want)
		}
		exit, crashed := errors.AsType[*exec.ExitError](err)
		if wantCrash := at != "" && at != "d"; crashed != wantCrash {
			t.Errorf("%q: crashed = %v (%v), want %v", at, crashed, err, wantCrash)
		} else if crashed && exit.Exited() {
			t.Errorf("%q: ended in good order with %v", at, exit)
		}
	}
}
