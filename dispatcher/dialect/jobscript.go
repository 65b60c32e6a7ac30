package dialect

import (
	"regexp"
	"strings"

	"github.com/procfleet/procfleet"
)

// jobScript is an element of operate_proc. The process comes with scripts of
// agreed names in its setup path, in the language of their extension.
type jobScript struct {
	jobTarget
	Extension string `json:"cmd_shell_ext"`
}

func (p jobScript) operation(action procfleet.Action, prefix string) (procfleet.Operation, error) {
	if missing := p.missing(); missing != "" {
		return procfleet.Operation{}, required(prefix + missing)
	}
	spec, err := p.spec(prefix)
	if err != nil {
		return procfleet.Operation{}, err
	}
	return p.on(action, spec, prefix)
}

func (p *jobScript) spec(prefix string) (procfleet.ProcessSpec, error) {
	s := p.jobTarget.spec()
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

// scriptLines make the command line that runs an action's script with the
// process's name. The agent runs it in the setup path. Programs that stay in
// the foreground must not hold up a script in sh, so that runs in background.
var scriptLines = map[procfleet.Shell]func(action, name string) string{
	procfleet.ShellSh:  func(action, name string) string { return "./" + action + ".sh " + quoteSh(name) + " &" },
	procfleet.ShellBat: func(action, name string) string { return action + ".bat " + quoteBat(name) },
	// PowerShell runs nothing of the current folder without being told to.
	procfleet.ShellPs1: func(action, name string) string { return `.\` + action + ".ps1 " + quotePs1(name) },
}

// plainName is a word that stands for itself in every shell. PowerShell takes
// digits for numbers and a dash for an option.
var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

func quoteSh(word string) string {
	if plainName.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// quoteBat needs a word without the characters that [jobScript] refuses.
func quoteBat(word string) string {
	if plainName.MatchString(word) {
		return word
	}
	return `"` + word + `"`
}

// quotePs1 doubles everything that PowerShell takes for a single quote.
func quotePs1(word string) string {
	if plainName.MatchString(word) {
		return word
	}
	quotes := strings.NewReplacer("'", "''", "\u2018", "\u2018\u2018", "\u2019", "\u2019\u2019", "\u201a", "\u201a\u201a", "\u201b", "\u201b\u201b")
	return "'" + quotes.Replace(word) + "'"
}
