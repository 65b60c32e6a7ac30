package worker

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
)

// This file is the only place on the server's side where the model and the
// wire meet: agents of last year's release speak the wire, the model moves on.

func encodeSpec(s *procfleet.ProcessSpec) (json.RawMessage, error) {
	data, err := json.Marshal(wireSpec(s))
	if err != nil {
		return nil, fmt.Errorf("encode process spec %s: %w", s.Key(), err)
	}
	return data, nil
}

func wireSpec(s *procfleet.ProcessSpec) agentproto.Spec {
	c, a := &s.Control, &s.Alive
	return agentproto.Spec{
		Key: s.Key(), Namespace: s.Namespace, Name: s.Name,
		ProcName: s.ProcName, ArgsPattern: s.ArgsPattern, SetupPath: s.SetupPath, PidPath: s.PidPath,
		ConfigPath: s.ConfigPath, LogPath: s.LogPath, Account: s.Account,

		StartCmd: c.Start, StopCmd: c.Stop, RestartCmd: c.Restart, ReloadCmd: c.Reload, KillCmd: c.Kill,
		VersionCmd: c.Version, HealthCmd: c.Health, Shell: string(c.Shell), Env: c.Environment,
		NoProfile: c.NoProfile, RestartInPlace: c.RestartInPlace, HealthRestart: c.HealthRestart,

		Type:              string(a.Type),
		OpTimeoutMS:       a.OpTimeout.Std().Milliseconds(),
		StartCheckBeginMS: a.StartCheckBegin.Std().Milliseconds(),
		StartCheckEndMS:   a.StartCheckEnd.Std().Milliseconds(),
		StopCheckMS:       a.StopCheck.Std().Milliseconds(),
		StartRetries:      a.StartRetries,
		StartIntervalMS:   a.StartInterval.Std().Milliseconds(),
		CycleTimeMS:       a.CycleTime.Std().Milliseconds(),
		Crontab:           a.Crontab,
		Instances:         a.Instances,
		CPULimit:          s.Limits.CPU,
		MemoryLimit:       s.Limits.Memory,
	}
}

// agentResult is an agent's word on one item as the model has it. Texts are
// cut to their bounds; a pair of code and reason that is not a known one
// becomes a failure that says so, so that nothing counts as success by
// mistake.
func agentResult(r *agentproto.Result) procfleet.Result {
	result := procfleet.Result{
		Item: r.Item, Code: procfleet.Code(r.Code), Reason: procfleet.Reason(r.Reason), Rank: procfleet.RankAgent,
		Message: r.Message, Warnings: cutWarnings(r.Warnings), Status: processStatus(r.Status),
		AcceptedAt: r.AcceptedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
	}
	if !knownOutcome(r.Code, r.Reason) {
		result.Code, result.Reason = procfleet.CodeFailed, procfleet.ReasonCommandFailed
		result.Message = fmt.Sprintf("agent answered code %d with reason %q, which this server does not know: %s",
			r.Code, cut(r.Reason, maxWord), r.Message)
	}
	result.Message = cut(result.Message, procfleet.MaxMessage)
	return result
}

// knownOutcome reports whether an agent may send this pair.
func knownOutcome(code int, reason string) bool {
	switch reason {
	case agentproto.ReasonSucceeded:
		return code == agentproto.CodeSuccess
	case agentproto.ReasonAlreadyRunning:
		return code == agentproto.CodeAlreadyRunning
	case agentproto.ReasonNotRunning:
		return code == agentproto.CodeNotRunning
	case agentproto.ReasonCommandFailed:
		return code == agentproto.CodeFailed
	case agentproto.ReasonCheckFailed:
		return code == agentproto.CodeCheckFailed
	case agentproto.ReasonRefused:
		return code == agentproto.CodeFailed || code == agentproto.CodeUnknownAction || code == agentproto.CodeAgentAbnormal
	}
	return false
}

func processStatus(s *agentproto.Status) *procfleet.ProcessStatus {
	if s == nil {
		return nil
	}
	return &procfleet.ProcessStatus{
		At: s.At, UTCOffset: s.UTCOffset,
		Running: s.Running, Supervised: s.Supervised, Phase: s.Phase, AgentID: s.AgentID,
		PID: s.PID, PIDs: s.PIDs[:min(len(s.PIDs), procfleet.MaxInstances)], Instances: s.Instances,
		Command: s.Command, Stat: s.Stat, Threads: s.Threads,
		StartedAt: s.StartedAt, ElapsedMS: s.ElapsedMS, UserMS: s.UserMS, SystemMS: s.SystemMS,
		CPU: s.CPU, CPUAverage: s.CPUAverage,
		MemoryBytes: s.MemoryBytes, MemoryPercent: s.MemoryPercent, HostFreeKB: s.HostFreeKB,
		TreeCPU: s.TreeCPU, TreeMemoryBytes: s.TreeMemoryBytes,
		Version: s.Version, Health: s.Health,
		RegisteredAt: s.RegisteredAt, LastStartedAt: s.LastStartedAt,
		Failures: s.Failures, NextRetryAt: s.NextRetryAt,
		NextRunAt: s.NextRunAt, FrozenUntil: s.FrozenUntil, Restarts: s.Restarts, LastExit: lastExit(s.LastExit),
		Evidence: s.Evidence,
	}
}

func lastExit(e *agentproto.LastExit) *procfleet.LastExit {
	if e == nil {
		return nil
	}
	return &procfleet.LastExit{At: e.At, Known: e.Known, Code: e.Code, Signal: cut(e.Signal, maxWord), Why: cut(e.Why, maxWord)}
}

// serverResult is a result that the server makes for want of an agent's word.
func serverResult(item int, code procfleet.Code, reason procfleet.Reason, message string, now time.Time) procfleet.Result {
	return procfleet.Result{
		Item: item, Code: code, Reason: reason, Rank: procfleet.RankServer,
		Message: cut(message, procfleet.MaxMessage), FinishedAt: now,
	}
}

// Bounds of foreign text.
const (
	maxWord     = 128 // bytes of an id, a version, a reason
	maxWarnings = 16
	maxWarning  = 512 // bytes
)

func cutWarnings(warnings []string) []string {
	if len(warnings) == 0 {
		return nil
	}
	kept := make([]string, 0, min(len(warnings), maxWarnings))
	for _, w := range warnings[:min(len(warnings), maxWarnings)] {
		kept = append(kept, cut(w, maxWarning))
	}
	return kept
}

// cut bounds s to limit bytes of valid UTF-8.
func cut(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}

// hostFromWire reads "<cloud>:<ip>" and checks that it is of the cloud area
// that the subject names, since that is what NATS permissions can enforce.
func hostFromWire(text, subject string) (procfleet.Host, error) {
	host, err := procfleet.ParseHost(text)
	if err != nil {
		return procfleet.Host{}, err
	}
	area := subject[strings.LastIndexByte(subject, '.')+1:]
	if area != strconv.FormatInt(int64(host.Cloud), 10) {
		return procfleet.Host{}, fmt.Errorf("host %s came on subject %s of another cloud area", host, cut(subject, maxWord))
	}
	return host, nil
}
