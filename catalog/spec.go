package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
)

// Spec returns the template as a process spec for agents, the same on every
// host: the managed process of the business's namespace and the template's
// name. Unset values are as in [procfleet.DefaultSpec].
//
// A relative pid file is in the work path, and a Windows work path selects the
// Windows shell. A process without automatic start is [procfleet.Manual]. The
// spec may be invalid; see [Template.SpecProblems].
func (t *Template) Spec(b Business) procfleet.ProcessSpec {
	text := func(a Attribute) string { return t.Values[a].text }
	s := procfleet.DefaultSpec()
	s.Namespace, s.Name = b.Namespace(), t.Name()
	s.ProcName = cmp.Or(text(AttrFuncName), t.Name())
	s.ArgsPattern = text(AttrArgsPattern)
	s.SetupPath = text(AttrWorkPath)
	s.PidPath = below(s.SetupPath, text(AttrPidFile))
	s.Account = text(AttrUser)
	s.FuncID, s.InstanceID = text(AttrFuncID), strconv.FormatInt(t.ID, 10)
	s.Control.Start, s.Control.Stop, s.Control.Restart = text(AttrStart), text(AttrStop), text(AttrRestart)
	s.Control.Reload, s.Control.Kill = text(AttrReload), text(AttrKill)
	if procfleet.IsWindowsPath(s.SetupPath) {
		s.Control.Shell = procfleet.ShellBat
	}
	t.keepAlive(&s.Alive)
	return s
}

func (t *Template) keepAlive(a *procfleet.AlivePolicy) {
	if supervised, _ := t.Values[AttrAutoStart].AsTruth(); !supervised {
		a.Type = procfleet.Manual
	}
	if n, ok := t.Values[AttrInstances].AsNumber(); ok {
		a.Instances = int(n)
	}
	if n, ok := t.Values[AttrTimeout].AsNumber(); ok {
		a.OpTimeout = seconds(n)
	}
	if n, ok := t.Values[AttrAutoStartGap].AsNumber(); ok {
		a.StartInterval = seconds(n)
	}
}

func seconds(n int64) procfleet.Duration { return procfleet.Duration(time.Duration(n) * time.Second) }

// below is a file that is named in full, or as seen from a folder.
func below(folder, file string) string {
	switch {
	case file == "" || folder == "" || procfleet.IsAbsolutePath(file):
		return file
	case procfleet.IsWindowsPath(folder):
		return strings.TrimRight(folder, `\/`) + `\` + strings.TrimPrefix(file, `.\`)
	}
	return path.Join(folder, file)
}

// SpecProblems says what keeps the template's spec from being of use for an
// action, one text for each problem, which begins with the attribute's name.
func (t *Template) SpecProblems(b Business, action procfleet.Action) []string {
	s := t.Spec(b)
	problems := t.lacks(&s, action)
	for _, err := range flat(s.Validate(action)) {
		text := err.Error()
		if f, ok := errors.AsType[*procfleet.FieldError](err); ok {
			text = cmp.Or(string(specAttributes[f.Field]), f.Field) + ": " + f.Problem
		}
		problems = append(problems, text)
	}
	return problems
}

// lacks finds what a spec of the vocabulary may lack, and a process that many
// hosts share may not.
func (t *Template) lacks(s *procfleet.ProcessSpec, action procfleet.Action) []string {
	var problems []string
	starts := action == procfleet.ActionStart || action == procfleet.ActionSupervise || action == procfleet.ActionRestart
	if s.SetupPath == "" && s.PidPath == "" {
		problems = append(problems, fmt.Sprintf("%s: is empty, and so is %s: nothing distinguishes the process from others of the same program", AttrWorkPath, AttrPidFile))
	}
	if starts && s.Alive.Instances > 1 && s.PidPath == "" {
		problems = append(problems, fmt.Sprintf("%s: %d need %s, a file with the pid of each in a line of its own", AttrInstances, s.Alive.Instances, AttrPidFile))
	}
	if action == procfleet.ActionSupervise && s.Alive.Type == procfleet.Manual {
		problems = append(problems, fmt.Sprintf("%s: is false, so nothing keeps the process alive; set it, or use start", AttrAutoStart))
	}
	return problems
}

// specAttributes are the attributes from which fields of a spec are taken.
var specAttributes = map[string]Attribute{
	"name":                 AttrName,
	"proc_name":            AttrFuncName,
	"args_pattern":         AttrArgsPattern,
	"setup_path":           AttrWorkPath,
	"pid_path":             AttrPidFile,
	"account":              AttrUser,
	"func_id":              AttrFuncID,
	"control.start":        AttrStart,
	"control.stop":         AttrStop,
	"control.restart":      AttrRestart,
	"control.reload":       AttrReload,
	"control.kill":         AttrKill,
	"alive.op_timeout":     AttrTimeout,
	"alive.start_interval": AttrAutoStartGap,
	"alive.instances":      AttrInstances,
}

// flat are the errors that errors.Join joined.
func flat(err error) []error {
	if err == nil {
		return nil
	}
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range many.Unwrap() {
		all = append(all, flat(e)...)
	}
	return all
}
