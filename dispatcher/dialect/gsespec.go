package dialect

import (
	"cmp"
	"strings"

	"github.com/procfleet/procfleet"
)

type gseSpec struct {
	Identity *gseIdentity `json:"identity"`
	Control  *gseControl  `json:"control"`
	Resource *gseResource `json:"resource"`
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

// missing returns the first field that an operation needs and does not have.
// The other fields that are documented as required are not always sent.
func (s *gseSpec) missing() string {
	switch {
	case s == nil:
		return "spec"
	case s.Identity == nil:
		return "spec.identity"
	case s.Identity.ProcName == "":
		return "spec.identity.proc_name"
	case s.Identity.SetupPath == nil: // but it may be ""
		return "spec.identity.setup_path"
	}
	return ""
}

// of returns the spec of a process; prefix is where meta and spec stand. What
// only concerns a single host's process, such as a missing command or a path
// that is not absolute, is left to that host.
func (s *gseSpec) of(meta *gseMeta, prefix string) (procfleet.ProcessSpec, error) {
	id, p := s.Identity, procfleet.DefaultSpec()
	c, limits := cmp.Or(s.Control, &gseControl{}), cmp.Or(s.Resource, &gseResource{})
	p.Namespace, p.Name, p.Labels = meta.Namespace, meta.Name, meta.Labels
	p.ProcName, p.PidPath = id.ProcName, id.PidPath
	if id.SetupPath != nil {
		p.SetupPath = *id.SetupPath
	}
	p.ConfigPath, p.LogPath, p.Account = id.ConfigPath, id.LogPath, id.User
	p.Control.Start, p.Control.Stop, p.Control.Restart = c.Start, c.Stop, c.Restart
	p.Control.Reload, p.Control.Kill = c.Reload, c.Kill
	p.Control.Version, p.Control.Health = c.Version, c.Health
	p.Limits = procfleet.Limits{CPU: limits.CPU, Memory: limits.Memory}

	policy, name := s.policy()
	if policy != nil {
		if err := policy.apply(&p.Alive, prefix+"spec."+name+"."); err != nil {
			return p, err
		}
	}
	if err := p.ValidateBounds(); err != nil {
		return p, refused(err, func(field string) string { return prefix + gseField(field, name) })
	}
	return p, nil
}

// policy returns the alive policy, if there is one, and the name under which
// it came.
func (s *gseSpec) policy() (p *gsePolicy, name string) {
	if s.AlivePolicy == nil && s.MonitorPolicy != nil {
		return s.MonitorPolicy, "monitor_policy"
	}
	return s.AlivePolicy, "alive_monitor_policy"
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
