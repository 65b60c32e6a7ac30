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

// Spec returns the template as a process spec for agents. The spec is the same on all
// hosts: its namespace is the namespace of the business, its name is the template's
// name. Values that the template does not set are as in [procfleet.DefaultSpec], except that
// a stop kills nothing: a template has no attribute for it.
//
// A relative pid file is relative to the work path. A Windows work path selects the
// Windows shell. Without automatic start the process is [procfleet.Manual]. The spec
// may be invalid; see [Template.SpecProblems].
func (t *Template) Spec(b Business) procfleet.ProcessSpec {
	text := func(a Attribute) string { return t.Values[a].text }
	s := procfleet.DefaultSpec()
	s.Alive.StopGrace = 0
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

// below returns the path of a file; a relative path is relative to folder.
func below(folder, file string) string {
	switch {
	case file == "" || folder == "" || procfleet.IsAbsolutePath(file):
		return file
	case procfleet.IsWindowsPath(folder):
		return strings.TrimRight(folder, `\/`) + `\` + strings.TrimPrefix(file, `.\`)
	}
	return path.Join(folder, file)
}

// SpecProblems returns the reasons why an action is not possible with the template's
// spec, each beginning with the name of the attribute. It returns none if the action is
// possible.
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

// lacks returns further requirements of an action on a process that runs on many hosts:
// the spec itself is valid without them.
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

// specAttributes maps the fields of a spec to the attributes from which they are set.
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

// flat returns the errors that errors.Join has joined.
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
