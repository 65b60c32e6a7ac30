package proc

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"
)

const systemDir = `C:\Windows\system32`

// TestFaultMatrix has the row of the fault matrix that is about the commands of
// Windows, as far as they are text.
func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	t.Run("F102_windows_commands", func(t *testing.T) {
		t.Parallel()
		t.Run("cmd.exe gets the line as it was written", batGetsTheLine)
		t.Run("PowerShell gets the line as it was written", psGetsTheLine)
		t.Run("what no shell would read to its end is refused", windowsLineRefused)
		t.Run("another account is refused", otherAccountRefused)
	})
}

func batGetsTheLine(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`start.bat`,
		`"C:\Program Files\app\start.bat" -c "a b.conf"`,
		`start.bat & echo done`,
		`echo a ^& b`,
		`echo 100% of %PATH%`,
		`echo "one" "two"`,
		`"`,
		`启动.bat`,
		`echo (a) | findstr a > out.txt`,
		`run \`,
	} {
		program, whole, err := windowsCommand(ShellBat, systemDir, line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if program != systemDir+`\cmd.exe` {
			t.Errorf("%s is run by %s", line, program)
		}
		if got := cmdReads(t, whole); got != line {
			t.Errorf("cmd.exe reads %s, want %s", got, line)
		}
	}
}

// cmdReads returns the command that cmd.exe executes for a command line with /s: the text
// after /c, without the first and the last quote.
func cmdReads(t *testing.T, whole string) string {
	t.Helper()
	rest, ok := strings.CutPrefix(whole, `"`+systemDir+`\cmd.exe" `)
	if !ok {
		t.Fatalf("%s does not begin with the quoted program", whole)
	}
	options, rest, ok := strings.Cut(rest, `/c "`)
	if !ok || options != "/d /s " || !strings.HasSuffix(rest, `"`) {
		t.Fatalf(`%s is not cmd.exe /d /s /c "…"`, whole)
	}
	return rest[:len(rest)-1]
}

func psGetsTheLine(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`.\start.ps1`,
		`& 'C:\Program Files\app\start.ps1' -Name "a b"`,
		`Write-Output "100%" ; exit 3`,
		"if ($true) {\n  'two lines'\n}",
		`echo 'done' # a remark that must not swallow the exit code`,
		`启动 "€"`,
	} {
		program, whole, err := windowsCommand(ShellPS1, systemDir, line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if program != systemDir+`\WindowsPowerShell\v1.0\powershell.exe` {
			t.Errorf("%s is run by %s", line, program)
		}
		const options = `" -NoProfile -NonInteractive -ExecutionPolicy Bypass -OutputFormat Text -EncodedCommand `
		encoded, ok := strings.CutPrefix(whole, `"`+program+options)
		if !ok {
			t.Fatalf("the options are missing in %s", whole)
		}
		script := decodeUTF16(t, encoded)
		if !strings.Contains(script, "\n"+line+"\n") {
			t.Errorf("the line is not a line of the script %q", script)
		}
		if !strings.HasSuffix(script, "exit $LASTEXITCODE\n") {
			t.Errorf("the script does not end with the exit code: %q", script)
		}
	}
}

func decodeUTF16(t *testing.T, encoded string) string {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(raw)%2 != 0 {
		t.Fatalf("%q is not base64 of UTF-16: %v", encoded, err)
	}
	units := make([]uint16, len(raw)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	return string(utf16.Decode(units))
}

func windowsLineRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		shell Shell
		line  string
		want  string // part of the error; "" = it runs
	}{
		{ShellBat, "a\nb", "line break"},
		{ShellBat, "a\r\nb", "line break"},
		{ShellPS1, "a\r\nb", ""},
		{ShellBat, strings.Repeat("x", 9000), "8191"},
		{ShellBat, strings.Repeat("x", 8000), ""},
		{ShellPS1, strings.Repeat("x", 11000), ""},
		{ShellPS1, strings.Repeat("x", 13000), "put it into a script"},
		{ShellSh, "./start.sh", "give its commands in bat or ps1"},
		{"", "./start.sh", "give its commands in bat or ps1"},
		{"csh", "x", "not a supported shell"},
	} {
		_, _, err := windowsCommand(test.shell, systemDir, test.line)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s of %d characters: %v, want %q", test.shell, len(test.line), err, test.want)
		}
	}
}

func otherAccountRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		system bool
		want   bool
	}{
		{"", false, true},
		{"deploy", false, true},
		{"Deploy", false, true},
		{`WORK\deploy`, false, true},
		{`.\deploy`, false, true},
		{`OTHER\deploy`, false, false},
		{"root", false, false},
		{"Administrator", false, false},
		{"SYSTEM", false, false},
		{"system", true, true},
		{"LocalSystem", true, true},
		{`nt authority\system`, true, true},
		{"Administrator", true, false},
	} {
		if got := meansAccount(test.name, "WORK", "deploy", test.system); got != test.want {
			t.Errorf("%q means the agent's own account: %t, want %t (agent is the system: %t)", test.name, got, test.want, test.system)
		}
	}
}

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
		{ShellSh, "windows", "runs no sh commands"},
		{"", "windows", "runs no sh commands"},
		{"csh", "linux", `"csh" is not a supported shell`},
		{"csh", "windows", `"csh" is not a supported shell`},
	} {
		err := test.shell.RunsOn(test.system)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q on %s: %v, want %q", test.shell, test.system, err, test.want)
		}
	}
}
