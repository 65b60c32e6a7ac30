package dialect

import (
	"cmp"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
)

type gseSpec struct {
	Identity *gseIdentity `json:"identity"`
	Control  *gseControl  `json:"control"`
	Resource *gseResource `json:"resource"`
	// The documented name of the policy is alive_monitor_policy. Requests may name it
	// monitor_policy instead, which is ignored beside the documented name.
	AlivePolicy   *gsePolicy `json:"alive_monitor_policy"`
	MonitorPolicy *gsePolicy `json:"monitor_policy"`
}

// gseIdentity has pointers, like the types below, to distinguish absent members from
// empty ones.
type gseIdentity struct {
	ProcName   *string `json:"proc_name"`
	SetupPath  *string `json:"setup_path"`
	PidPath    *string `json:"pid_path"`
	ConfigPath *string `json:"config_path"`
	LogPath    *string `json:"log_path"`
	User       *string `json:"user"`
}

type gseControl struct {
	Start   *string `json:"start_cmd"`
	Stop    *string `json:"stop_cmd"`
	Restart *string `json:"restart_cmd"`
	Reload  *string `json:"reload_cmd"`
	Kill    *string `json:"kill_cmd"`
	Version *string `json:"version_cmd"`
	Health  *string `json:"health_cmd"`
}

type gseResource struct {
	CPU    *float64 `json:"cpu"`
	Memory *float64 `json:"mem"`
}

// gsePolicy holds durations in seconds as numbers, not as pointers: callers with typed
// structs always send a number, so 0 means the default.
type gsePolicy struct {
	AutoType       *int    `json:"auto_type"`
	StartCheckSecs int     `json:"start_check_secs"`
	StopCheckSecs  int     `json:"stop_check_secs"`
	StartRetries   *int    `json:"start_retries"` // 0 is no retry
	StartInterval  int     `json:"start_interval"`
	CrontabRule    *string `json:"crontab_rule"`
	CrotabRule     *string `json:"crotab_rule"` // misspelled in the published example
	OpTimeout      int     `json:"op_timeout"`
}

// missing returns the first absent field without which an unregistered process cannot be
// operated. Callers do not always send the other fields that are documented as required.
func (s *gseSpec) missing() string {
	switch {
	case s == nil:
		return "spec"
	case s.Identity == nil:
		return "spec.identity"
	case s.Identity.ProcName == nil || *s.Identity.ProcName == "":
		return "spec.identity.proc_name"
	case s.Identity.SetupPath == nil: // "" is valid
		return "spec.identity.setup_path"
	}
	return ""
}

// gseSpecReader builds a process spec and records which fields the request gave.
type gseSpecReader struct {
	spec  procfleet.ProcessSpec
	given procfleet.SpecFields
	// whole means that the request has a command, and therefore describes completely how
	// the process is controlled: its "" and 0 are values. In any other request "" and 0
	// count as absent, because typed callers send them for members that they omit.
	whole bool
}

// read returns the spec of a process, with defaults for absent members, and the set of
// given fields; prefix is the path of meta and spec in the body. It leaves errors that
// concern only the process on one host, such as a missing command or a relative path, to
// that host.
func (s *gseSpec) read(meta *gseMeta, prefix string) (procfleet.ProcessSpec, procfleet.SpecFields, error) {
	if s == nil {
		s = &gseSpec{}
	}
	control := cmp.Or(s.Control, &gseControl{})
	r := gseSpecReader{spec: publishedSpec(), whole: control.commands()}
	r.spec.Namespace, r.spec.Name, r.spec.Labels = meta.Namespace, meta.Name, meta.Labels
	r.note(procfleet.FieldLabels, meta.Labels != nil, len(meta.Labels) == 0)
	r.identity(cmp.Or(s.Identity, &gseIdentity{}))
	r.control(control)
	r.limits(cmp.Or(s.Resource, &gseResource{}))
	policy, name := s.policy()
	if policy != nil {
		if err := r.policy(policy, prefix+"spec."+name+"."); err != nil {
			return r.spec, r.given, err
		}
	}
	if err := r.spec.ValidateBounds(); err != nil {
		return r.spec, r.given, refused(err, func(field string) string { return prefix + gseField(field, name) })
	}
	return r.spec, r.given, nil
}

// policy returns the policy, nil if there is none, and the name of its member.
func (s *gseSpec) policy() (p *gsePolicy, name string) {
	if s.AlivePolicy == nil && s.MonitorPolicy != nil {
		return s.MonitorPolicy, "monitor_policy"
	}
	return s.AlivePolicy, "alive_monitor_policy"
}

// publishedSpec returns the defaults of the published APIs: there, a stop kills nothing.
func publishedSpec() procfleet.ProcessSpec {
	s := procfleet.DefaultSpec()
	s.Alive.StopGrace = 0
	return s
}

func (c *gseControl) commands() bool {
	return slices.ContainsFunc([]*string{c.Start, c.Stop, c.Restart, c.Reload, c.Kill, c.Version, c.Health}, func(command *string) bool {
		return command != nil && *command != ""
	})
}

// note records a field as given if it is present. Zero counts as present only if whole
// is set.
func (r *gseSpecReader) note(field procfleet.SpecField, there, zero bool) {
	r.given = r.given.With(field, there && (r.whole || !zero))
}

func (r *gseSpecReader) text(field procfleet.SpecField, into, from *string) {
	if from != nil {
		*into = *from
		r.note(field, true, *from == "")
	}
}

func (r *gseSpecReader) limit(field procfleet.SpecField, into, from *float64) {
	if from != nil {
		*into = *from
		r.note(field, true, *from == 0)
	}
}

// time reads a time in seconds. 0 counts as absent.
func (r *gseSpecReader) time(field procfleet.SpecField, into *procfleet.Duration, from int) {
	if from != 0 {
		*into = seconds(from)
		r.given = r.given.With(field, true)
	}
}

func (r *gseSpecReader) identity(id *gseIdentity) {
	p, whole := &r.spec, r.whole
	r.whole = whole && id.SetupPath != nil && *id.SetupPath != "" // without a setup path, other empty paths count as absent too
	r.text(procfleet.FieldProcName, &p.ProcName, id.ProcName)
	if p.ProcName == "" { // no process has an empty name
		r.given &^= 1 << procfleet.FieldProcName
	}
	r.text(procfleet.FieldSetupPath, &p.SetupPath, id.SetupPath)
	r.text(procfleet.FieldPidPath, &p.PidPath, id.PidPath)
	r.text(procfleet.FieldConfigPath, &p.ConfigPath, id.ConfigPath)
	r.text(procfleet.FieldLogPath, &p.LogPath, id.LogPath)
	r.text(procfleet.FieldAccount, &p.Account, id.User)
	r.whole = whole
}

func (r *gseSpecReader) control(from *gseControl) {
	c := &r.spec.Control
	r.text(procfleet.FieldStart, &c.Start, from.Start)
	r.text(procfleet.FieldStop, &c.Stop, from.Stop)
	r.text(procfleet.FieldRestart, &c.Restart, from.Restart)
	r.text(procfleet.FieldReload, &c.Reload, from.Reload)
	r.text(procfleet.FieldKill, &c.Kill, from.Kill)
	r.text(procfleet.FieldVersion, &c.Version, from.Version)
	r.text(procfleet.FieldHealth, &c.Health, from.Health)
}

func (r *gseSpecReader) limits(from *gseResource) {
	r.limit(procfleet.FieldCPU, &r.spec.Limits.CPU, from.CPU)
	r.limit(procfleet.FieldMemory, &r.spec.Limits.Memory, from.Memory)
}

// policy sets the given members of a policy over the defaults; prefix is the path of the
// policy in the body.
func (r *gseSpecReader) policy(p *gsePolicy, prefix string) error {
	a := &r.spec.Alive
	if p.AutoType != nil {
		t, ok := autoTypes[*p.AutoType]
		if !ok {
			return invalid(prefix+"auto_type", "%d is unknown: 0 is periodic, 1 resident, 2 one-shot", *p.AutoType)
		}
		a.Type = t
		r.note(procfleet.FieldType, true, *p.AutoType == 0)
	}
	if p.StartRetries != nil {
		a.StartRetries = *p.StartRetries
		r.note(procfleet.FieldStartRetries, true, *p.StartRetries == 0)
	}
	r.time(procfleet.FieldStartCheck, &a.StartCheckBegin, p.StartCheckSecs)
	a.StartCheckEnd = a.StartCheckBegin
	r.time(procfleet.FieldStopCheck, &a.StopCheck, p.StopCheckSecs)
	r.time(procfleet.FieldStartInterval, &a.StartInterval, p.StartInterval)
	r.time(procfleet.FieldOpTimeout, &a.OpTimeout, p.OpTimeout)
	rule := p.CrontabRule
	if rule == nil || *rule == "" {
		rule = cmp.Or(p.CrotabRule, rule)
	}
	r.text(procfleet.FieldCrontab, &a.Crontab, rule)
	return nil
}

// seconds returns n seconds. A number that overflows a Duration becomes a value that is
// outside every bound as well.
func seconds(n int) procfleet.Duration {
	const beyond = 1 << 31
	return procfleet.Seconds(min(max(n, -beyond), beyond))
}

// gseFields are the names of process spec fields in this dialect. A leading "*" stands
// for the name of the policy.
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
