package dialect

import (
	"regexp"
	"strings"

	"github.com/procfleet/procfleet"
)

// jobScript is an element of operate_proc. The process has scripts in its setup path,
// named after their action, with the extension cmd_shell_ext.
type jobScript struct {
	jobTarget
	Extension string `json:"cmd_shell_ext"`
}

func (p jobScript) spec(prefix string) (procfleet.ProcessSpec, error) {
	s := p.common()
	shell := procfleet.ShellSh
	if p.Extension != "" {
		shell = procfleet.Shell(p.Extension)
	}
	line, ok := scriptLines[shell]
	if !ok {
		return s, invalid(prefix+"cmd_shell_ext", "%q is unknown: there are sh, bat and ps1", p.Extension)
	}
	if shell == procfleet.ShellBat && strings.ContainsAny(p.ProcName, "\"%\r\n") {
		return s, invalid(prefix+"proc_name", "%q cannot be handed to a bat script: quotes, percent signs and line ends have no escape there", p.ProcName)
	}
	c := &s.Control
	c.Shell = shell
	c.Start, c.Stop = line("start", p.ProcName), line("stop", p.ProcName)
	c.Restart, c.Reload = line("restart", p.ProcName), line("reload", p.ProcName)
	s.Limits = procfleet.Limits{CPU: limitOr(p.CPULimit, 50), Memory: limitOr(p.MemoryLimit, 30)}
	a := &s.Alive
	a.OpTimeout = procfleet.Seconds(10)
	a.StartCheckBegin, a.StartCheckEnd = procfleet.Seconds(5), procfleet.Seconds(1)
	return s, nil
}

// scriptLines return, by shell, the command line that runs the script of an action with
// the process's name as argument. The agent runs it in the setup path. sh runs the
// script in the background, so that a program in the foreground does not block the
// operation.
var scriptLines = map[procfleet.Shell]func(action, name string) string{
	procfleet.ShellSh:  func(action, name string) string { return "./" + action + ".sh " + quoteSh(name) + " &" },
	procfleet.ShellBat: func(action, name string) string { return action + ".bat " + quoteBat(name) },
	// PowerShell runs a script of the current folder only with the prefix .\
	procfleet.ShellPs1: func(action, name string) string { return `.\` + action + ".ps1 " + quotePs1(name) },
}

// plainName matches words that need no quotes in any shell. It excludes a leading digit
// or dash, which PowerShell parses as a number or an option.
var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

func quoteSh(word string) string {
	if plainName.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// quoteBat quotes a word without the characters that [jobScript.spec] rejects.
func quoteBat(word string) string {
	if plainName.MatchString(word) {
		return word
	}
	return `"` + word + `"`
}

// quotePs1 doubles every character that PowerShell accepts as a single quote.
func quotePs1(word string) string {
	if plainName.MatchString(word) {
		return word
	}
	quotes := strings.NewReplacer("'", "''", "\u2018", "\u2018\u2018", "\u2019", "\u2019\u2019", "\u201a", "\u201a\u201a", "\u201b", "\u201b\u201b")
	return "'" + quotes.Replace(word) + "'"
}
