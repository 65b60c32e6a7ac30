package main

import (
	"bytes"
	"strings"
	"testing"
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
			if code := run(t.Context(), c.args, &out, &errs); code != exitUsage {
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
	if code := run(t.Context(), []string{"--version"}, &out, &errs); code != 0 || !strings.Contains(out.String(), version) {
		t.Errorf("exit code %d, said %q %q", code, out.String(), errs.String())
	}
}
