package procfleet

import "encoding/json"

// Overlay lists the fields of a process spec that a request contains. On a host
// where the process is registered, the registration supplies all other fields.
type Overlay struct {
	Given SpecFields `json:"given,omitempty"`
	// Missing is the caller's name of the first absent field that an
	// unregistered process requires; empty if none is absent.
	Missing string `json:"missing,omitempty"`
}

// SpecField is a member of a [ProcessSpec] that a request may leave out.
type SpecField uint8

// The fields that requests may leave out.
const (
	FieldLabels SpecField = iota
	FieldProcName
	FieldSetupPath
	FieldPidPath
	FieldConfigPath
	FieldLogPath
	FieldAccount
	FieldStart
	FieldStop
	FieldRestart
	FieldReload
	FieldKill
	FieldVersion
	FieldHealth
	FieldCPU
	FieldMemory
	FieldType
	FieldStartCheck
	FieldStopCheck
	FieldStartRetries
	FieldStartInterval
	FieldOpTimeout
	FieldCrontab

	specFieldCount
)

// specFields maps each field to its JSON path and to its copy function.
var specFields = [specFieldCount]struct {
	name string
	copy func(to, from *ProcessSpec)
}{
	FieldLabels:     {"labels", func(to, from *ProcessSpec) { to.Labels = from.Labels }},
	FieldProcName:   {"proc_name", func(to, from *ProcessSpec) { to.ProcName = from.ProcName }},
	FieldSetupPath:  {"setup_path", func(to, from *ProcessSpec) { to.SetupPath = from.SetupPath }},
	FieldPidPath:    {"pid_path", func(to, from *ProcessSpec) { to.PidPath = from.PidPath }},
	FieldConfigPath: {"config_path", func(to, from *ProcessSpec) { to.ConfigPath = from.ConfigPath }},
	FieldLogPath:    {"log_path", func(to, from *ProcessSpec) { to.LogPath = from.LogPath }},
	FieldAccount:    {"account", func(to, from *ProcessSpec) { to.Account = from.Account }},
	FieldStart:      {"control.start", func(to, from *ProcessSpec) { to.Control.Start = from.Control.Start }},
	FieldStop:       {"control.stop", func(to, from *ProcessSpec) { to.Control.Stop = from.Control.Stop }},
	FieldRestart:    {"control.restart", func(to, from *ProcessSpec) { to.Control.Restart = from.Control.Restart }},
	FieldReload:     {"control.reload", func(to, from *ProcessSpec) { to.Control.Reload = from.Control.Reload }},
	FieldKill:       {"control.kill", func(to, from *ProcessSpec) { to.Control.Kill = from.Control.Kill }},
	FieldVersion:    {"control.version", func(to, from *ProcessSpec) { to.Control.Version = from.Control.Version }},
	FieldHealth:     {"control.health", func(to, from *ProcessSpec) { to.Control.Health = from.Control.Health }},
	FieldCPU:        {"limits.cpu", func(to, from *ProcessSpec) { to.Limits.CPU = from.Limits.CPU }},
	FieldMemory:     {"limits.memory", func(to, from *ProcessSpec) { to.Limits.Memory = from.Limits.Memory }},
	FieldType:       {"alive.type", func(to, from *ProcessSpec) { to.Alive.Type = from.Alive.Type }},
	FieldStartCheck: {"alive.start_check", func(to, from *ProcessSpec) {
		to.Alive.StartCheckBegin, to.Alive.StartCheckEnd = from.Alive.StartCheckBegin, from.Alive.StartCheckEnd
	}},
	FieldStopCheck:     {"alive.stop_check", func(to, from *ProcessSpec) { to.Alive.StopCheck = from.Alive.StopCheck }},
	FieldStartRetries:  {"alive.start_retries", func(to, from *ProcessSpec) { to.Alive.StartRetries = from.Alive.StartRetries }},
	FieldStartInterval: {"alive.start_interval", func(to, from *ProcessSpec) { to.Alive.StartInterval = from.Alive.StartInterval }},
	FieldOpTimeout:     {"alive.op_timeout", func(to, from *ProcessSpec) { to.Alive.OpTimeout = from.Alive.OpTimeout }},
	FieldCrontab:       {"alive.crontab", func(to, from *ProcessSpec) { to.Alive.Crontab = from.Alive.Crontab }},
}

// SpecFields is a set of fields, encoded in JSON as a list of their paths.
type SpecFields uint32

// AllSpecFields is every field that a request may leave out.
const AllSpecFields SpecFields = 1<<specFieldCount - 1

// With returns s with f added if given is true, and otherwise s.
func (s SpecFields) With(f SpecField, given bool) SpecFields {
	if given {
		s |= 1 << f
	}
	return s
}

// Over returns registered with the fields in s copied from given.
func (s SpecFields) Over(registered, given *ProcessSpec) ProcessSpec {
	merged := *registered
	for f := range specFields {
		if s&(1<<f) != 0 {
			specFields[f].copy(&merged, given)
		}
	}
	return merged
}

// MarshalJSON encodes the set as the list of its JSON paths.
func (s SpecFields) MarshalJSON() ([]byte, error) {
	names := []string{}
	for f := range specFields {
		if s&(1<<f) != 0 {
			names = append(names, specFields[f].name)
		}
	}
	return json.Marshal(names)
}
