package dialect

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// jobInfo is one element of process_infos. Each call has its own type. The argument prefix
// is the path of the element in the body.
type jobInfo interface {
	// missing returns the first required member that is absent.
	missing() string
	spec(prefix string) (procfleet.ProcessSpec, error)
	// on returns the operation with the given action and spec on the hosts of the element.
	on(action procfleet.Action, spec procfleet.ProcessSpec, prefix string) (procfleet.Operation, error)
}

// decodeJob returns the decoder of a call; actions are its actions by op_type. Job
// rejects any other op_type, whereas GSE accepts it and every host reports an error.
func decodeJob[T jobInfo](actions map[int]procfleet.Action) func(*Request) (procfleet.Submission, error) {
	return func(r *Request) (procfleet.Submission, error) {
		var params struct {
			jobScope
			OpType    *int `json:"op_type"`
			Processes []T  `json:"process_infos"`
		}
		if err := decodeESB(r, &params); err != nil {
			return procfleet.Submission{}, err
		}
		business, err := params.business()
		if err != nil {
			return procfleet.Submission{}, err
		}
		action, err := jobAction(params.OpType, actions)
		if err != nil {
			return procfleet.Submission{}, err
		}
		if len(params.Processes) == 0 {
			return procfleet.Submission{}, required("process_infos")
		}
		s := procfleet.Submission{Business: business}
		for i, info := range params.Processes {
			prefix := "process_infos[" + strconv.Itoa(i) + "]."
			if missing := info.missing(); missing != "" {
				return procfleet.Submission{}, required(prefix + missing)
			}
			spec, err := info.spec(prefix)
			if err != nil {
				return procfleet.Submission{}, err
			}
			o, err := info.on(action, spec, prefix)
			if err != nil {
				return procfleet.Submission{}, err
			}
			s.Operations = append(s.Operations, o)
		}
		return s, nil
	}
}

func jobAction(op *int, actions map[int]procfleet.Action) (procfleet.Action, error) {
	if op == nil {
		return "", required("op_type")
	}
	if action, ok := actions[*op]; ok {
		return action, nil
	}
	var known []string
	for _, n := range slices.Sorted(maps.Keys(actions)) {
		known = append(known, strconv.Itoa(n))
	}
	return "", invalid("op_type", "%d is unknown: there are %s", *op, strings.Join(known, ", "))
}

// jobTarget has the members that the elements of all calls share.
type jobTarget struct {
	SetupPath string    `json:"setup_path"`
	ProcName  string    `json:"proc_name"`
	PidPath   string    `json:"pid_path"`
	Account   string    `json:"account"`
	Hosts     []jobHost `json:"ip_list"`
	// A limit is nil if it is absent, because some calls have a default other than 0.
	CPULimit    *float64 `json:"cpu_lmt"`
	MemoryLimit *float64 `json:"mem_lmt"`
}

type jobHost struct {
	CloudID *int64 `json:"bk_cloud_id"`
	IP      string `json:"ip"`
}

func (t jobTarget) missing() string {
	switch {
	case blank(t.SetupPath):
		return "setup_path"
	case blank(t.ProcName):
		return "proc_name"
	case blank(t.PidPath):
		return "pid_path"
	case len(t.Hosts) == 0:
		return "ip_list"
	}
	return ""
}

func blank(text string) bool { return strings.TrimSpace(text) == "" }

// common returns the part of the process spec that all calls share.
func (t *jobTarget) common() procfleet.ProcessSpec {
	s := publishedSpec()
	s.ProcName, s.SetupPath, s.PidPath = t.ProcName, t.SetupPath, t.PidPath
	if s.Account = strings.TrimSpace(t.Account); s.Account == "" {
		s.Account = "root"
	}
	return s
}

func (t jobTarget) on(action procfleet.Action, spec procfleet.ProcessSpec, prefix string) (procfleet.Operation, error) {
	if err := spec.ValidateBounds(); err != nil {
		return procfleet.Operation{}, refused(err, func(field string) string { return prefix + jobField(field) })
	}
	targets := make([]procfleet.Target, 0, len(t.Hosts))
	for i, h := range t.Hosts {
		target, err := addressTarget(h.CloudID, h.IP, prefix+"ip_list", i)
		if err != nil {
			return procfleet.Operation{}, err
		}
		targets = append(targets, target)
	}
	return procfleet.Operation{Action: action, Process: spec, Targets: targets}, nil
}

// jobProcess is an element of operate_process, which contains the complete process spec.
type jobProcess struct {
	jobTarget
	ConfigPath      string `json:"cfg_path"`
	LogPath         string `json:"log_path"`
	Contact         string `json:"contact"`
	Start           string `json:"start_cmd"`
	Stop            string `json:"stop_cmd"`
	Restart         string `json:"restart_cmd"`
	Reload          string `json:"reload_cmd"`
	Kill            string `json:"kill_cmd"`
	FuncID          string `json:"func_id"`
	InstanceID      string `json:"instance_id"`
	ValueKey        string `json:"value_key"`
	Type            int    `json:"type"`
	CycleTime       int    `json:"cycle_time"`
	InstanceNum     int    `json:"instance_num"`
	StartCheckBegin int    `json:"start_check_begin_time"`
	StartCheckEnd   int    `json:"start_check_end_time"`
	OpTimeout       int    `json:"op_timeout"`
}

// spec returns the process spec. Callers of Job cannot distinguish absent from zero, so
// a time of 0 means its default.
func (p jobProcess) spec(prefix string) (procfleet.ProcessSpec, error) {
	s := p.common()
	processType, ok := autoTypes[p.Type]
	if !ok {
		return s, invalid(prefix+"type", "%d is unknown: 0 is periodic, 1 resident, 2 one-shot", p.Type)
	}
	s.ValueKey, s.ConfigPath, s.LogPath = p.ValueKey, p.ConfigPath, p.LogPath
	s.Control.Start, s.Control.Stop, s.Control.Restart = p.Start, p.Stop, p.Restart
	s.Control.Reload, s.Control.Kill = p.Reload, p.Kill
	s.FuncID, s.InstanceID, s.Contact = p.FuncID, p.InstanceID, p.Contact
	if p.CPULimit != nil {
		s.Limits.CPU = *p.CPULimit
	}
	if p.MemoryLimit != nil {
		s.Limits.Memory = *p.MemoryLimit
	}

	a := &s.Alive
	a.Type = processType
	orDefault := func(d *procfleet.Duration, n int) {
		if n != 0 {
			*d = seconds(n)
		}
	}
	orDefault(&a.OpTimeout, p.OpTimeout)
	orDefault(&a.StartCheckBegin, p.StartCheckBegin)
	orDefault(&a.StartCheckEnd, p.StartCheckEnd)
	orDefault(&a.CycleTime, p.CycleTime)
	if p.InstanceNum != 0 {
		a.Instances = p.InstanceNum
	}
	return s, nil
}

// limitOr returns a limit in percent, or the default if the limit is absent or not
// within 0 to 100.
func limitOr(given *float64, byDefault float64) float64 {
	if given == nil || *given < 0 || *given > 100 {
		return byDefault
	}
	return *given
}

// jobFields are the names of process spec fields in this dialect. Fields that are not
// listed have the same name.
var jobFields = map[string]string{
	"config_path":             "cfg_path",
	"control.start":           "start_cmd",
	"control.stop":            "stop_cmd",
	"control.restart":         "restart_cmd",
	"control.reload":          "reload_cmd",
	"control.kill":            "kill_cmd",
	"control.shell":           "cmd_shell_ext",
	"alive.type":              "type",
	"alive.op_timeout":        "op_timeout",
	"alive.start_check_begin": "start_check_begin_time",
	"alive.start_check_end":   "start_check_end_time",
	"alive.cycle_time":        "cycle_time",
	"alive.instances":         "instance_num",
	"limits.cpu":              "cpu_lmt",
	"limits.memory":           "mem_lmt",
}

func jobField(field string) string {
	if word, ok := jobFields[field]; ok {
		return word
	}
	return field
}

// manageActions are the actions of manage_proc by op_type. Other calls use opActions.
var manageActions = map[int]procfleet.Action{
	1: procfleet.ActionSupervise,
	2: procfleet.ActionRelease,
}

// jobManaged is an element of manage_proc. Without a setup path, value_key identifies
// the process: the one that was started with the same key.
type jobManaged struct {
	jobProcess
	Owner string `json:"proc_owner"`
}

func (p jobManaged) spec(prefix string) (procfleet.ProcessSpec, error) {
	s, err := p.jobProcess.spec(prefix)
	s.Contact = p.Owner
	s.Limits = procfleet.Limits{CPU: limitOr(p.CPULimit, 0), Memory: limitOr(p.MemoryLimit, 0)}
	return s, err
}

func (p jobManaged) on(action procfleet.Action, spec procfleet.ProcessSpec, prefix string) (procfleet.Operation, error) {
	if action == procfleet.ActionSupervise && runsOnce(&spec) {
		action = procfleet.ActionStart
	}
	return p.jobProcess.on(action, spec, prefix)
}

func (p jobManaged) missing() string {
	switch {
	case blank(p.ProcName):
		return "proc_name"
	case blank(p.Owner):
		return "proc_owner"
	case blank(p.SetupPath) && blank(p.ValueKey):
		return "setup_path"
	case len(p.Hosts) == 0:
		return "ip_list"
	}
	return ""
}

// runsOnce reports whether registering the process means to start it, because it is not
// kept alive: a one-shot process, or a periodic one without a cycle and a crontab rule.
// Like any start, a second registration fails with 828 while the process runs, and
// starts it again after it has ended.
func runsOnce(s *procfleet.ProcessSpec) bool {
	a := &s.Alive
	return a.Type == procfleet.Once || a.Type == procfleet.Periodic && a.CycleTime == 0 && a.Crontab == ""
}
