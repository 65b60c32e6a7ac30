package dialect

import (
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// jobOperate is the body of operate_process.
type jobOperate struct {
	jobScope
	OpType    *int         `json:"op_type"`
	Processes []jobProcess `json:"process_infos"`
}

type jobProcess struct {
	SetupPath       string    `json:"setup_path"`
	ProcName        string    `json:"proc_name"`
	PidPath         string    `json:"pid_path"`
	ConfigPath      string    `json:"cfg_path"`
	LogPath         string    `json:"log_path"`
	Contact         string    `json:"contact"`
	Start           string    `json:"start_cmd"`
	Stop            string    `json:"stop_cmd"`
	Restart         string    `json:"restart_cmd"`
	Reload          string    `json:"reload_cmd"`
	Kill            string    `json:"kill_cmd"`
	FuncID          string    `json:"func_id"`
	InstanceID      string    `json:"instance_id"`
	ValueKey        string    `json:"value_key"`
	Type            int       `json:"type"`
	CycleTime       int       `json:"cycle_time"`
	InstanceNum     int       `json:"instance_num"`
	StartCheckBegin int       `json:"start_check_begin_time"`
	StartCheckEnd   int       `json:"start_check_end_time"`
	OpTimeout       int       `json:"op_timeout"`
	Account         string    `json:"account"`
	CPULimit        float64   `json:"cpu_lmt"`
	MemoryLimit     float64   `json:"mem_lmt"`
	Hosts           []jobHost `json:"ip_list"`
}

type jobHost struct {
	CloudID *int64 `json:"bk_cloud_id"`
	IP      string `json:"ip"`
}

func decodeOperateProcess(r *Request) (procfleet.Submission, error) {
	var params jobOperate
	if err := decodeESB(r, &params); err != nil {
		return procfleet.Submission{}, err
	}
	business, err := params.business()
	if err != nil {
		return procfleet.Submission{}, err
	}
	switch {
	case params.OpType == nil:
		return procfleet.Submission{}, required("op_type")
	case len(params.Processes) == 0:
		return procfleet.Submission{}, required("process_infos")
	}
	s := procfleet.Submission{Business: business}
	for i := range params.Processes {
		o, err := params.Processes[i].operation(opAction(*params.OpType), "process_infos["+strconv.Itoa(i)+"].")
		if err != nil {
			return procfleet.Submission{}, err
		}
		s.Operations = append(s.Operations, o)
	}
	return s, nil
}

func (p *jobProcess) operation(action procfleet.Action, prefix string) (procfleet.Operation, error) {
	if missing := p.missing(); missing != "" {
		return procfleet.Operation{}, required(prefix + missing)
	}
	spec, err := p.spec(prefix)
	if err != nil {
		return procfleet.Operation{}, err
	}
	if err := spec.ValidateBounds(); err != nil {
		return procfleet.Operation{}, refused(err, func(field string) string { return prefix + jobField(field) })
	}
	targets := make([]procfleet.Target, 0, len(p.Hosts))
	for i, h := range p.Hosts {
		t, err := addressTarget(h.CloudID, h.IP, prefix+"ip_list", i)
		if err != nil {
			return procfleet.Operation{}, err
		}
		targets = append(targets, t)
	}
	return procfleet.Operation{Action: action, Process: spec, Targets: targets}, nil
}

func (p *jobProcess) missing() string {
	blank := func(text string) bool { return strings.TrimSpace(text) == "" }
	switch {
	case blank(p.SetupPath):
		return "setup_path"
	case blank(p.ProcName):
		return "proc_name"
	case blank(p.PidPath):
		return "pid_path"
	case len(p.Hosts) == 0:
		return "ip_list"
	}
	return ""
}

// spec returns the process spec. Job's callers cannot tell absent from zero,
// so zero is the default for every time.
func (p *jobProcess) spec(prefix string) (procfleet.ProcessSpec, error) {
	s := procfleet.DefaultSpec()
	processType, ok := autoTypes[p.Type]
	if !ok {
		return s, invalid(prefix+"type", "%d is unknown: 0 is periodic, 1 resident, 2 one-shot", p.Type)
	}
	s.ValueKey, s.ProcName, s.SetupPath, s.PidPath = p.ValueKey, p.ProcName, p.SetupPath, p.PidPath
	s.ConfigPath, s.LogPath = p.ConfigPath, p.LogPath
	if s.Account = strings.TrimSpace(p.Account); s.Account == "" {
		s.Account = "root"
	}
	s.Control.Start, s.Control.Stop, s.Control.Restart = p.Start, p.Stop, p.Restart
	s.Control.Reload, s.Control.Kill = p.Reload, p.Kill
	s.FuncID, s.InstanceID, s.Contact = p.FuncID, p.InstanceID, p.Contact
	s.Limits = procfleet.Limits{CPU: p.CPULimit, Memory: p.MemoryLimit}

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

// jobFields are the shape's words for the fields of a process spec; fields
// that are not here have the same name.
var jobFields = map[string]string{
	"config_path":             "cfg_path",
	"control.start":           "start_cmd",
	"control.stop":            "stop_cmd",
	"control.restart":         "restart_cmd",
	"control.reload":          "reload_cmd",
	"control.kill":            "kill_cmd",
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
