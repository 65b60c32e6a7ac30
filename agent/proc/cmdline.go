package proc

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// The longest command lines that Windows takes, in UTF-16 units.
const (
	maxBatLine     = 8191  // cmd.exe reads no more
	maxWindowsLine = 32766 // CreateProcess
)

// meansAccount reports whether a name is the account own of a domain (or
// computer), with or without the domain before it. system says that it is the
// account that services run as, whose name is in the language of the host.
func meansAccount(name, domain, own string, system bool) bool {
	switch {
	case name == "":
		return true
	case system && (strings.EqualFold(name, "SYSTEM") || strings.EqualFold(name, "LocalSystem") || strings.EqualFold(name, `NT AUTHORITY\SYSTEM`)):
		return true
	}
	return strings.EqualFold(name, own) || strings.EqualFold(name, domain+`\`+own) || strings.EqualFold(name, `.\`+own)
}

// windowsCommand is the program that runs a line on Windows, and the whole
// command line to start it with, which is not made of arguments: each program
// reads it in its own way. systemDir is the folder of the system's programs.
func windowsCommand(shell Shell, systemDir, line string) (program, commandLine string, err error) {
	limit := maxWindowsLine
	switch shell {
	case ShellBat:
		program, limit = systemDir+`\cmd.exe`, maxBatLine
		commandLine, err = batCommandLine(program, line)
	case ShellPS1:
		program = systemDir + `\WindowsPowerShell\v1.0\powershell.exe`
		commandLine = psCommandLine(program, line)
	default:
		return "", "", shell.RunsOn("windows")
	}
	if units := len(utf16.Encode([]rune(commandLine))); err == nil && units > limit {
		err = fmt.Errorf("command makes a command line of %d characters, more than the %d that Windows takes of %s: put it into a script", units, limit, shell)
	}
	return program, commandLine, err
}

// batCommandLine gives the line to cmd.exe as if it were typed there. With /s
// the first and the last quote go and everything between them stays as it is,
// whatever quotes it has; so nothing needs to be escaped, and nothing could be:
// "&", "|", "^" and "%" mean in it what they mean to cmd.exe. /d runs no
// command that the registry adds.
func batCommandLine(program, line string) (string, error) {
	if strings.ContainsAny(line, "\r\n") {
		return "", errors.New("command has a line break, and cmd.exe would leave out what follows it: join commands with & or &&, or put them into a script")
	}
	return `"` + program + `" /d /s /c "` + line + `"`, nil
}

// psCommandLine gives a script to PowerShell in a form that no quoting can
// break, whatever policy there is for scripts. The exit code is the one of the
// last program; 1 when the last command, being no program, failed.
func psCommandLine(program, line string) string {
	script := "$ProgressPreference = 'SilentlyContinue'; $global:LASTEXITCODE = 0\n" +
		line + "\n" +
		"if (-not $? -and $LASTEXITCODE -eq 0) { exit 1 }\nexit $LASTEXITCODE\n"
	return `"` + program + `" -NoProfile -NonInteractive -ExecutionPolicy Bypass -OutputFormat Text -EncodedCommand ` + encodeUTF16(script)
}

// encodeUTF16 is base64 of UTF-16, low byte first.
func encodeUTF16(text string) string {
	var encoded []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		encoded = binary.LittleEndian.AppendUint16(encoded, unit)
	}
	return base64.StdEncoding.EncodeToString(encoded)
}
