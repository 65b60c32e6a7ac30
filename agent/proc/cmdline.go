package proc

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// The longest command lines of Windows, in UTF-16 units.
const (
	maxBatLine     = 8191  // limit of cmd.exe
	maxWindowsLine = 32766 // limit of CreateProcess
)

// meansAccount reports whether name, with or without a domain, denotes the account own of a
// domain (or computer); an empty name does. system is true if own is the account of
// services, whose name depends on the language of the host.
func meansAccount(name, domain, own string, system bool) bool {
	switch {
	case name == "":
		return true
	case system && (strings.EqualFold(name, "SYSTEM") || strings.EqualFold(name, "LocalSystem") || strings.EqualFold(name, `NT AUTHORITY\SYSTEM`)):
		return true
	}
	return strings.EqualFold(name, own) || strings.EqualFold(name, domain+`\`+own) || strings.EqualFold(name, `.\`+own)
}

// windowsCommand returns the program that runs a line on Windows, and the command line that
// starts the program. Windows passes no argument list: each program parses its command line
// itself. systemDir is the directory of the system's programs.
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
		err = fmt.Errorf("command line has %d characters, more than the %d that Windows allows for %s: put it into a script", units, limit, shell)
	}
	return program, commandLine, err
}

// batCommandLine returns the command line of cmd.exe for a line. With /s cmd.exe
// removes the first and the last quote and leaves the rest unchanged, so that
// nothing needs to be escaped, and "&", "|", "^" and "%" keep their meaning. /d
// skips the commands that the registry adds.
func batCommandLine(program, line string) (string, error) {
	if strings.ContainsAny(line, "\r\n") {
		return "", errors.New("command has a line break, and cmd.exe would ignore the following lines: join commands with & or &&, or put them into a script")
	}
	return `"` + program + `" /d /s /c "` + line + `"`, nil
}

// psCommandLine returns the command line of PowerShell for a script, under any execution
// policy. The script is encoded, so its quotes need no escaping. The exit code is the exit
// code of the last program, or 1 if the last command failed without an exit code.
func psCommandLine(program, line string) string {
	script := "$ProgressPreference = 'SilentlyContinue'; $global:LASTEXITCODE = 0\n" +
		line + "\n" +
		"if (-not $? -and $LASTEXITCODE -eq 0) { exit 1 }\nexit $LASTEXITCODE\n"
	return `"` + program + `" -NoProfile -NonInteractive -ExecutionPolicy Bypass -OutputFormat Text -EncodedCommand ` + encodeUTF16(script)
}

// encodeUTF16 returns the text as base64 of little-endian UTF-16.
func encodeUTF16(text string) string {
	var encoded []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		encoded = binary.LittleEndian.AppendUint16(encoded, unit)
	}
	return base64.StdEncoding.EncodeToString(encoded)
}
