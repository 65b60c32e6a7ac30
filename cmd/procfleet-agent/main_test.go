package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/cmd/internal/command"
)

func TestWrongUsageSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  [2]string
		want string
	}{
		{args: nil, want: "--ip"},
		{args: []string{"--ip", "no"}, want: "--ip"},
		{args: []string{"--ip", "0.0.0.0"}, want: "not the address of one host"},
		{args: []string{"--cloud", "-1", "--ip", "10.0.0.1"}, want: "--cloud"},
		{args: []string{"--ip", "10.0.0.1", "--log-level", "loud"}, want: "--log-level"},
		{args: []string{"--ip", "10.0.0.1", "--log-format", "xml"}, want: "--log-format"},
		{args: []string{"--ip", "10.0.0.1", "--nats", "nats://a b"}, want: "--nats"},
		{args: []string{"--nonsense"}, want: "--nonsense"},
		{args: []string{"surplus"}, want: "surplus"},
		{args: []string{"healthcheck", "http://127.0.0.1:1/", "surplus"}, want: "one URL"},
		{env: [2]string{"PROCFLEET_CLOUD", "x"}, want: "PROCFLEET_CLOUD"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			if c.env[0] != "" {
				t.Setenv(c.env[0], c.env[1])
			}
			var out, errs bytes.Buffer
			if code := run(t.Context(), c.args, &out, &errs); code != command.ExitUsage {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(errs.String(), c.want) {
				t.Errorf("said %q, want %q in it", errs.String(), c.want)
			}
		})
	}
}

func TestVersionIsPrinted(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"--version"}, &out, &errs); code != 0 || out.String() != "procfleet-agent version "+command.Build()+"\n" {
		t.Errorf("exit code %d, said %q %q", code, out.String(), errs.String())
	}
}

// The environment belongs to the process, so this test is not parallel.
func TestAMisspeltSettingIsNamedWithItsPlace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("ip: 10.0.0.1\nagnet-id: web-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"--config", file}, &out, &errs)
	if want := file + `:2: agnet-id: no such setting; did you mean "agent-id"?`; code != command.ExitUsage || !strings.Contains(errs.String(), want) {
		t.Errorf("exit code %d, said %q, want %q in it", code, errs.String(), want)
	}
	t.Setenv("PROCFLEET_DRIAN", "3s")
	t.Setenv("PROCFLEET_REDIS", "redis://10.0.0.4") // of other roles, which may share the environment
	errs.Reset()
	code = run(t.Context(), []string{"--ip", "10.0.0.1", "--check-config"}, &out, &errs)
	if want := "procfleet-agent: warning: PROCFLEET_DRIAN has no effect: there is no such setting; did you mean PROCFLEET_DRAIN?\n"; code != 0 || errs.String() != want {
		t.Errorf("exit code %d, said %q, want %q", code, errs.String(), want)
	}
}
