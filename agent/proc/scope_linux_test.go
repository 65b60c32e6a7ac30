package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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
echo "$$ $(id -u) $*" >>%[1]s
env >>%[1]s.env
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

// The account's library would run as root if LD_LIBRARY_PATH of the spec
// reached a program that runs before the account is dropped.
func TestHelpersOfScopesThatRunAsRootGetNothingOfTheSpec(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.Need(t, "setpriv", "util-linux")
	asked := fakeSystemdRun(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nenv >>%s.env\nexec %s \"$@\"\n", asked, setpriv)
	if err := os.WriteFile(filepath.Join(filepath.Dir(asked), "setpriv"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	runner, err := NewRunner(NewAccounts())
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.UseScopes(t.Context()); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(folder, "it's\na $HOME")
	if err := errors.Join(os.Mkdir(odd, 0o755), os.Chmod(filepath.Dir(folder), 0o755)); err != nil {
		t.Fatal(err)
	}
	const value = "it's \"a\" $(id) \\ value\nof two lines "
	for _, account := range []string{"root", "nobody"} {
		running, err := runner.Start(t.Context(), Command{
			Line: `printf '%s|%s|%s' "$PLANTED" "$(pwd)" "$(cat)"`, Dir: odd, Account: account,
			Env: map[string]string{"PLANTED": value, "GREETING": value}, OutputPath: filepath.Join(t.TempDir(), "out"),
		})
		if err != nil {
			t.Fatal(err)
		}
		<-running.Done()
		if result := running.Result(); !result.OK() || result.Output != value+"|"+odd+"|" {
			t.Errorf("%s: %s, output %q, want %q", account, result, result.Output, value+"|"+odd+"|")
		}
	}
	environment, err := os.ReadFile(asked + ".env")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(environment), "PATH=") || strings.Contains(string(environment), "PLANTED") || strings.Contains(string(environment), odd) {
		t.Errorf("environment of systemd-run and setpriv:\n%s", environment)
	}

	locked := filepath.Join(folder, "locked")
	if err := os.Mkdir(locked, 0o700); err != nil {
		t.Fatal(err)
	}
	running, err := runner.Start(t.Context(), Command{Line: "true", Dir: locked, Account: "nobody", OutputPath: filepath.Join(t.TempDir(), "out")})
	if err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	if result := running.Result(); result.OK() || !strings.Contains(result.Output, locked+" is not accessible to account nobody") {
		t.Errorf("in a folder that the account may not enter: %s, output %q", result, result.Output)
	}
	if _, err := runner.Start(t.Context(), Command{Line: "true", Dir: "/", Env: map[string]string{"a.b": ""}, OutputPath: filepath.Join(t.TempDir(), "out")}); err == nil ||
		!strings.Contains(err.Error(), `"a.b"`) {
		t.Errorf("a variable that no shell can set: %v", err)
	}
}
