package proc

import (
	"strings"
	"testing"
)

func TestShellsRunWhereTheirLanguageDoes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		shell  Shell
		system string
		want   string // part of the error; "" = it runs
	}{
		{"", "linux", ""},
		{ShellSh, "linux", ""},
		{ShellBat, "linux", `"bat" runs on Windows only, and this host runs linux`},
		{ShellPS1, "darwin", `"ps1" runs on Windows only, and this host runs darwin`},
		{ShellBat, "windows", ""},
		{ShellPS1, "windows", ""},
		{ShellSh, "windows", "no shell configured"},
		{"", "windows", "no shell configured"},
		{"csh", "linux", `"csh" is no shell`},
		{"csh", "windows", `"csh" is no shell`},
	} {
		err := test.shell.RunsOn(test.system)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q on %s: %v, want %q", test.shell, test.system, err, test.want)
		}
	}
}
