package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// fakeSystemdRun registers nothing and becomes the command, as the real one
// does.
func fakeSystemdRun(t *testing.T) (asked string) {
	t.Helper()
	dir := t.TempDir()
	asked = filepath.Join(dir, "asked")
	script := fmt.Sprintf(`#!/bin/sh
echo "$$ $(id -u) $*" >>%s
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
`, asked)
	if err := os.WriteFile(filepath.Join(dir, "systemd-run"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return asked
}

func TestCommandsRunInScopesOfTheirOwn(t *testing.T) {
	testenv.NeedRoot(t) // only root may make scopes
	asked := fakeSystemdRun(t)
	runner, err := NewRunner(NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.UseScopes(t.Context()); err != nil {
		t.Fatal(err)
	}
	accounts := []string{"root"}
	if runner.scopes.setpriv != "" {
		accounts = append(accounts, "nobody")
	}
	for _, account := range accounts {
		output := filepath.Join(t.TempDir(), "out")
		running, err := runner.Start(t.Context(), Command{
			Line: `echo "$(id -u) $(id -G) $PWD $HOME"; cat /proc/self/oom_score_adj; exit 7`, Dir: "/", Account: account, OutputPath: output,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-running.Done()
		result := running.Result()
		want, err := runner.accounts.Lookup(t.Context(), account)
		if err != nil {
			t.Fatal(err)
		}
		groups := strings.Trim(fmt.Sprint(want.Groups), "[]")
		if !slices.Contains(want.Groups, want.GID) {
			t.Fatalf("groups %v lack %d", want.Groups, want.GID)
		}
		if line := fmt.Sprintf("%d %s / %s\n0", want.UID, groups, want.Home); result.ExitCode != 7 || strings.TrimSpace(result.Output) != line {
			t.Errorf("%s: exit code %d, said %q, want %q", account, result.ExitCode, result.Output, line)
		}
		text, err := os.ReadFile(asked)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if prefix := fmt.Sprintf("%d 0 --scope ", running.Identity().PID); !strings.HasPrefix(lines[len(lines)-1], prefix) {
			t.Errorf("%s: asked %q, want %q: the leader itself, as root", account, lines[len(lines)-1], prefix)
		}
	}
	before, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	running, err := runner.Start(t.Context(), Command{Line: "true", Dir: "/", Contained: true, OutputPath: filepath.Join(t.TempDir(), "out")})
	if err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	if after, err := os.ReadFile(asked); err != nil || len(after) != len(before) {
		t.Errorf("a command that ends with the operation needs no scope: %s (%v)", after, err)
	}
}

func TestWhereSystemdMakesNoScopesThereAreNone(t *testing.T) {
	for name, script := range map[string]string{"no systemd-run": "", "one that fails": "#!/bin/sh\nexit 1\n"} {
		dir := t.TempDir()
		t.Setenv("PATH", dir)
		if script != "" {
			if err := os.WriteFile(filepath.Join(dir, "systemd-run"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		runner := &Runner{}
		if err := runner.UseScopes(t.Context()); err == nil || runner.scopes != (scopes{}) {
			t.Errorf("%s: %v, %+v", name, err, runner.scopes)
		}
	}
}
