package dialect

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

// gseOperate is what both operate calls say of one operation.
type gseOperate struct {
	Meta    *gseMeta  `json:"meta"`
	Hosts   []gseHost `json:"hosts"`
	Agents  []string  `json:"agent_id_list"`
	OpType  *int      `json:"op_type"`
	Process *gseSpec  `json:"spec"`
}

type gseMeta struct {
	Namespace string                     `json:"namespace"`
	Name      string                     `json:"name"`
	Labels    map[string]json.RawMessage `json:"labels"`
}

type gseHost struct {
	IP      string `json:"ip"`
	CloudID *int64 `json:"bk_cloud_id"`
	AgentID string `json:"bk_agent_id"`
}

type gseSpec struct {
	Identity *gseIdentity `json:"identity"`
	Control  gseControl   `json:"control"`
	Resource gseResource  `json:"resource"`
	// The policy has two names; AlivePolicy is the documented one of these calls.
	AlivePolicy   *gsePolicy `json:"alive_monitor_policy"`
	MonitorPolicy *gsePolicy `json:"monitor_policy"`
}

type gseIdentity struct {
	ProcName   string  `json:"proc_name"`
	SetupPath  *string `json:"setup_path"`
	PidPath    string  `json:"pid_path"`
	ConfigPath string  `json:"config_path"`
	LogPath    string  `json:"log_path"`
	User       string  `json:"user"`
}

type gseControl struct {
	Start   string `json:"start_cmd"`
	Stop    string `json:"stop_cmd"`
	Restart string `json:"restart_cmd"`
	Reload  string `json:"reload_cmd"`
	Kill    string `json:"kill_cmd"`
	Version string `json:"version_cmd"`
	Health  string `json:"health_cmd"`
}

type gseResource struct {
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"mem"`
}

type gsePolicy struct {
	AutoType       *int   `json:"auto_type"`
	StartCheckSecs *int   `json:"start_check_secs"`
	StopCheckSecs  *int   `json:"stop_check_secs"`
	StartRetries   *int   `json:"start_retries"`
	StartInterval  int    `json:"start_interval"`
	CrontabRule    string `json:"crontab_rule"`
	CrotabRule     string `json:"crotab_rule"` // as the published example spells it
	OpTimeout      int    `json:"op_timeout"`
}

func decodeOperateMulti(r *Request) (procfleet.Submission, error) {
	var params struct {
		Requests []gseOperate `json:"proc_operate_req"`
	}
	if err := decodeESB(r, &params); err != nil {
		return procfleet.Submission{}, err
	}
	if len(params.Requests) == 0 {
		return procfleet.Submission{}, required("proc_operate_req")
	}
	s := procfleet.Submission{Operations: make([]procfleet.Operation, 0, len(params.Requests))}
	for i := range params.Requests {
		o, err := params.Requests[i].operation("proc_operate_req[" + strconv.Itoa(i) + "].")
		if err != nil {
			return procfleet.Submission{}, err
		}
		s.Operations = append(s.Operations, o)
	}
	return s, nil
}

func decodeOperateV2(r *Request) (procfleet.Submission, error) {
	var params gseOperate
	if err := decodeESB(r, &params); err != nil {
		return procfleet.Submission{}, err
	}
	o, err := params.operation("")
	if err != nil {
		return procfleet.Submission{}, err
	}
	return procfleet.Submission{Operations: []procfleet.Operation{o}}, nil
}

// operation checks one request and turns it into an operation; prefix is
// where it stands. What only concerns a single host's process, such as a
// missing command or a path that is not absolute, is left to that host.
func (p *gseOperate) operation(prefix string) (procfleet.Operation, error) {
	if missing := p.missing(); missing != "" {
		return procfleet.Operation{}, required(prefix + missing)
	}
	spec, policy, err := p.spec(prefix)
	if err != nil {
		return procfleet.Operation{}, err
	}
	if err := spec.ValidateBounds(); err != nil {
		return procfleet.Operation{}, refused(err, func(field string) string {
			return prefix + gseField(field, policy)
		})
	}
	targets, err := p.targets(prefix)
	if err != nil {
		return procfleet.Operation{}, err
	}
	return procfleet.Operation{Action: opAction(*p.OpType), Process: spec, Targets: targets}, nil
}

// missing returns the first required field that is not there. The other
// fields that are documented as required are not always sent.
func (p *gseOperate) missing() string {
	switch {
	case p.Meta == nil:
		return "meta"
	case p.Meta.Namespace == "":
		return "meta.namespace"
	case p.Meta.Name == "":
		return "meta.name"
	case p.OpType == nil:
		return "op_type"
	case p.Process == nil:
		return "spec"
	case p.Process.Identity == nil:
		return "spec.identity"
	case p.Process.Identity.ProcName == "":
		return "spec.identity.proc_name"
	case p.Process.Identity.SetupPath == nil: // but it may be ""
		return "spec.identity.setup_path"
	case len(p.Hosts) == 0 && len(p.Agents) == 0:
		return "hosts"
	}
	return ""
}

// spec returns the process spec and the name under which its alive policy came.
func (p *gseOperate) spec(prefix string) (s procfleet.ProcessSpec, policy string, err error) {
	id, c := p.Process.Identity, &p.Process.Control
	s = procfleet.DefaultSpec()
	s.Namespace, s.Name, s.Labels = p.Meta.Namespace, p.Meta.Name, p.Meta.Labels
	s.ProcName, s.SetupPath, s.PidPath = id.ProcName, *id.SetupPath, id.PidPath
	s.ConfigPath, s.LogPath, s.Account = id.ConfigPath, id.LogPath, id.User
	s.Control.Start, s.Control.Stop, s.Control.Restart = c.Start, c.Stop, c.Restart
	s.Control.Reload, s.Control.Kill = c.Reload, c.Kill
	s.Control.Version, s.Control.Health = c.Version, c.Health
	s.Limits = procfleet.Limits{CPU: p.Process.Resource.CPU, Memory: p.Process.Resource.Memory}

	policy = "alive_monitor_policy"
	from := p.Process.AlivePolicy
	if from == nil && p.Process.MonitorPolicy != nil {
		policy, from = "monitor_policy", p.Process.MonitorPolicy
	}
	if from == nil {
		return s, policy, nil
	}
	return s, policy, from.apply(&s.Alive, prefix+"spec."+policy+".")
}

// apply overlays the policy on the defaults. Absent is the default
// everywhere; zero is the default for op_timeout and start_interval only.
func (p *gsePolicy) apply(a *procfleet.AlivePolicy, prefix string) error {
	if p.AutoType != nil {
		t, ok := autoTypes[*p.AutoType]
		if !ok {
			return invalid(prefix+"auto_type", "%d is unknown: 0 is periodic, 1 resident, 2 one-shot", *p.AutoType)
		}
		a.Type = t
	}
	if p.StartCheckSecs != nil {
		a.StartCheckBegin = seconds(*p.StartCheckSecs)
		a.StartCheckEnd = a.StartCheckBegin
	}
	if p.StopCheckSecs != nil {
		a.StopCheck = seconds(*p.StopCheckSecs)
	}
	if p.StartRetries != nil {
		a.StartRetries = *p.StartRetries
	}
	if p.StartInterval != 0 {
		a.StartInterval = seconds(p.StartInterval)
	}
	if p.OpTimeout != 0 {
		a.OpTimeout = seconds(p.OpTimeout)
	}
	if a.Crontab = p.CrontabRule; a.Crontab == "" {
		a.Crontab = p.CrotabRule
	}
	return nil
}

// seconds returns n seconds; a number that no Duration can hold becomes one
// that is out of every bound as well.
func seconds(n int) procfleet.Duration {
	const beyond = 1 << 31
	return procfleet.Seconds(min(max(n, -beyond), beyond))
}

func (p *gseOperate) targets(prefix string) ([]procfleet.Target, error) {
	if len(p.Agents) > 0 {
		return agentTargets(p.Agents, prefix+"agent_id_list")
	}
	targets := make([]procfleet.Target, 0, len(p.Hosts))
	for i := range p.Hosts {
		h := &p.Hosts[i]
		t, err := addressTarget(h.CloudID, h.IP, prefix+"hosts", i)
		if err != nil {
			return nil, err
		}
		if t.Host.IsZero() {
			t.AgentID = h.AgentID
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// gseFields are the shape's words for the fields of a process spec. A leading
// "*" stands for the name of the alive policy.
var gseFields = map[string]string{
	"namespace":               "meta.namespace",
	"name":                    "meta.name",
	"labels":                  "meta.labels",
	"proc_name":               "spec.identity.proc_name",
	"setup_path":              "spec.identity.setup_path",
	"pid_path":                "spec.identity.pid_path",
	"config_path":             "spec.identity.config_path",
	"log_path":                "spec.identity.log_path",
	"account":                 "spec.identity.user",
	"control.start":           "spec.control.start_cmd",
	"control.stop":            "spec.control.stop_cmd",
	"control.restart":         "spec.control.restart_cmd",
	"control.reload":          "spec.control.reload_cmd",
	"control.kill":            "spec.control.kill_cmd",
	"control.version":         "spec.control.version_cmd",
	"control.health":          "spec.control.health_cmd",
	"alive.type":              "*.auto_type",
	"alive.op_timeout":        "*.op_timeout",
	"alive.start_check_begin": "*.start_check_secs",
	"alive.start_check_end":   "*.start_check_secs",
	"alive.stop_check":        "*.stop_check_secs",
	"alive.start_retries":     "*.start_retries",
	"alive.start_interval":    "*.start_interval",
	"alive.crontab":           "*.crontab_rule",
	"limits.cpu":              "spec.resource.cpu",
	"limits.memory":           "spec.resource.mem",
}

func gseField(field, policy string) string {
	word, ok := gseFields[field]
	if !ok {
		return field
	}
	if rest, ok := strings.CutPrefix(word, "*"); ok {
		return "spec." + policy + rest
	}
	return word
}
