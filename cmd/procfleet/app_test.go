package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestAppAddListAndRemoveKeepTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "apps.yaml")
	code, secret, note := call(t, "app", "add", "shop", "--apps", file)
	secret = strings.TrimSpace(secret)
	if code != 0 || len(secret) != 43 || !strings.Contains(note, "added application shop") {
		t.Fatalf("exit %d, %q, %q", code, secret, note)
	}
	code, out, note := call(t, "app", "add", "two", "--secret", "given", "--biz", "1, 2", "--actions", "start,stop", "--skip-user-auth", "--signing", "--apps", file)
	if code != 0 || strings.Contains(out+note, "given") || len(strings.TrimSpace(out)) != 43 || !strings.Contains(note, "without the action status the application cannot read") {
		t.Errorf("exit %d, %q, %q", code, out, note)
	}
	key := strings.TrimSpace(out)
	_, out, _ = call(t, "app", "list", "--apps", file)
	for _, want := range []string{"shop  *           *           no               no", "two   1,2         start,stop  yes              yes"} {
		if !strings.Contains(out, want) {
			t.Errorf("list lacks %q:\n%s", want, out)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), secret) || strings.Contains(string(text), "given") || !strings.Contains(string(text), key) {
		t.Errorf("%v\n%s", err, text)
	}
	r, err := apps.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for code, secret := range map[string]string{"shop": secret, "two": "given"} {
		if _, err := r.Verify(t.Context(), code, secret); err != nil {
			t.Errorf("%s: %v", code, err)
		}
	}
	if code, _, note := call(t, "app", "add", "shop", "--apps", file); code != 0 || !strings.Contains(note, "replaced application shop") {
		t.Errorf("again: exit %d, %q", code, note)
	}
	if code, _, note := call(t, "app", "remove", "shop", "--apps", file); code != 0 {
		t.Errorf("remove: exit %d, %q", code, note)
	}
	if code, _, note := call(t, "app", "remove", "shop", "--apps", file); code != 1 || !strings.Contains(note, `application "shop" does not exist`) {
		t.Errorf("remove again: exit %d, %q", code, note)
	}
}

// Every account of the machine can read command lines, so a secret can be given in another way.
func TestASecretNeedNotStandOnTheCommandLine(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file, secret := filepath.Join(folder, "apps.yaml"), filepath.Join(folder, "secret")
	if err := os.WriteFile(secret, []byte("fr0m-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, note := call(t, "app", "add", "filed", "--secret-file", secret, "--apps", file); code != 0 || out != "" {
		t.Fatalf("exit %d, %q, %q", code, out, note)
	}
	piped := exec.CommandContext(t.Context(), testenv.BuildBinary(t, "./cmd/procfleet"), "app", "add", "piped", "--secret-file", "-", "--apps", file)
	piped.Stdin = strings.NewReader("fr0m-a-pipe\r\n")
	if out, err := piped.CombinedOutput(); err != nil || strings.Contains(string(out), "fr0m") {
		t.Fatalf("%v: %s", err, out)
	}
	r, err := apps.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for code, secret := range map[string]string{"filed": "fr0m-a-file", "piped": "fr0m-a-pipe"} {
		if _, err := r.Verify(t.Context(), code, secret); err != nil {
			t.Errorf("%s: %v", code, err)
		}
	}
}

func TestAppAddRefusesWhatNobodyWouldUnderstand(t *testing.T) {
	t.Parallel()
	file, empty := filepath.Join(t.TempDir(), "apps.yaml"), filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"shop"}, "name the file with --apps"},
		{[]string{"a.b", "--apps", file}, "letters, digits, - and _"},
		{[]string{"shop", "--actions", "start,fly", "--apps", file}, "start, stop, status, supervise, release, restart, reload, kill, registration, catalogue, output, approve, and * for all"},
		{[]string{"shop", "--actions", "", "--apps", file}, "--actions: is empty"},
		{[]string{"shop", "--biz", "1,*", "--apps", file}, "--biz: * includes every name"},
		{[]string{"shop", "--secret", "two words", "--apps", file}, "--secret: "},
		{[]string{"shop", "--secret", "a", "--secret-file", file, "--apps", file}, "--secret and --secret-file"},
		{[]string{"shop", "--secret-file", file, "--apps", file}, "--secret-file: open"},
		{[]string{"shop", "--secret-file", empty, "--apps", file}, "--secret-file: the secret is empty"},
		{[]string{"shop", "--secret-file", "/dev/zero", "--apps", file}, "--secret-file: a secret has at most"},
		{[]string{"--apps", file}, "give one CODE of an application"},
	} {
		code, _, note := call(t, append([]string{"app", "add"}, c.args...)...)
		if code != command.ExitUsage || !strings.Contains(note, c.want) || strings.Contains(note, "two words") {
			t.Errorf("%v: exit %d, %q", c.args, code, note)
		}
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file was made: %v", err)
	}
}

// TestAKilledAppAddLeavesAWholeFile kills the command as soon as the new file exists, or a little later. The
// file of applications must be complete.
func TestAKilledAppAddLeavesAWholeFile(t *testing.T) {
	t.Parallel()
	binary := testenv.BuildBinary(t, "./cmd/procfleet")
	file := filepath.Join(t.TempDir(), "apps.yaml")
	const before = 300
	hash := apps.Hash("x") // the same of all: one is enough to be slow
	err := apps.Update(file, func(f *apps.File) error {
		for i := range before {
			f.Put(apps.Application{Code: fmt.Sprintf("app-%d", i), Secret: hash, Businesses: apps.NoLimit(), Actions: apps.NoLimit()})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	temporary := filepath.Join(filepath.Dir(file), ".apps.yaml.new")
	killed, runs := 0, 6
	if testenv.IsLong() {
		runs = 24
	}
	for i := range runs {
		child := testenv.StartChild(t, nil, binary, "app", "add", fmt.Sprintf("new-%d", i), "--apps", file)
		over := false
		for looks := 0; !over; {
			select {
			case <-child.Done():
				over = true
				continue
			default:
			}
			if _, err := os.Stat(temporary); err == nil {
				if looks++; looks > i%6 {
					child.Kill()
					<-child.Done()
					killed, over = killed+1, true
				}
			}
		}
		found, err := apps.Read(file)
		if err != nil {
			t.Fatalf("after %d runs: %v", i+1, err)
		}
		if n := len(found.Applications()); n < before {
			t.Fatalf("after %d runs: %d applications", i+1, n)
		}
	}
	if killed == 0 {
		t.Error("no run was killed while it wrote")
	}
	if code, _, note := call(t, "app", "add", "last", "--apps", file); code != 0 {
		t.Errorf("after the kills: exit %d, %s", code, note)
	}
}

func TestWithApplicationsADispatcherMayBeReachedFromElsewhere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "apps.yaml")
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if code, _, note := call(t, "app", "add", "shop", "--apps", file); code != 0 {
		t.Fatal(note)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--http", "0.0.0.0:8080", "--apps", file}, 0, ""},
		{[]string{"--http", "0.0.0.0:8080"}, command.ExitUsage, "--apps"},
		{[]string{"--apps", missing}, command.ExitUsage, "procfleet app add CODE --apps " + missing},
		{[]string{"--login-url", "http://login"}, command.ExitUsage, "--login-url: has no effect without --apps"},
		{[]string{"--apps", file, "--login-url", "login"}, command.ExitUsage, "--login-url: is no URL"},
		{[]string{"--apps", file, "--login-url", "http://login", "--trusted-esb", "10.0.0.1, 10.1.0.0/16,fd00::/8"}, 0, ""},
		{[]string{"--apps", file, "--trusted-esb", "10.0.0.0/33"}, command.ExitUsage, `"10.0.0.0/33" is neither an address nor a network`},
		{[]string{"--apps", file, "--trusted-esb", "0.0.0.0/0"}, command.ExitUsage, `"0.0.0.0/0" trusts every caller`},
		{[]string{"--trusted-esb", "10.0.0.1"}, command.ExitUsage, "--trusted-esb: has no effect without --apps"},
	} {
		for _, role := range []string{"up", "dispatcher"} {
			code, _, note := call(t, append([]string{role, "--check-config"}, c.args...)...)
			if code != c.code || !strings.Contains(note, c.want) {
				t.Errorf("%s %v: exit %d, %q", role, c.args, code, note)
			}
		}
	}
}
