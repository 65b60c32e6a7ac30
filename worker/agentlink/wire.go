package agentlink

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
)

// This file is the server's only translation between the model and the wire, so that a
// change of the model does not change the wire format.

// EncodeSpec encodes a spec for commands.
func EncodeSpec(s *procfleet.ProcessSpec) (json.RawMessage, error) {
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
		StopGraceMS:       a.StopGrace.Std().Milliseconds(),
	}
}

// ResultOf translates an agent's result and truncates its texts. An unknown combination
// of code and reason becomes a failure that names both, and so never counts as success.
func ResultOf(r *agentproto.Result) procfleet.Result {
	result := procfleet.Result{
		Item: r.Item, Code: procfleet.Code(r.Code), Reason: procfleet.Reason(r.Reason), Rank: procfleet.RankAgent,
		Message: r.Message, Warnings: cutWarnings(r.Warnings), Status: StatusOf(r.Status),
		AcceptedAt: r.AcceptedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
	}
	if r.Reason == agentproto.ReasonRefused && r.Refusal == agentproto.RefusalSuperseded {
		result.Refusal = procfleet.RefusalSuperseded
	}
	if !slices.Contains(knownOutcomes[r.Reason], r.Code) {
		result.Code, result.Reason = procfleet.CodeFailed, procfleet.ReasonCommandFailed
		result.Message = fmt.Sprintf("agent answered code %d with reason %q, which this server does not know: %s",
			r.Code, Cut(r.Reason, MaxName), r.Message)
	}
	result.Message = Cut(result.Message, procfleet.MaxMessage)
	return result
}

// knownOutcomes has the codes that an agent may send with each reason.
var knownOutcomes = map[string][]int{
	agentproto.ReasonSucceeded:      {agentproto.CodeSuccess},
	agentproto.ReasonAlreadyRunning: {agentproto.CodeAlreadyRunning},
	agentproto.ReasonNotRunning:     {agentproto.CodeNotRunning},
	agentproto.ReasonCommandFailed:  {agentproto.CodeFailed},
	agentproto.ReasonCheckFailed:    {agentproto.CodeCheckFailed},
	agentproto.ReasonCancelled:      {agentproto.CodeFailed},
	agentproto.ReasonRefused:        {agentproto.CodeFailed, agentproto.CodeUnknownAction, agentproto.CodeAgentAbnormal},
}

// StatusOf translates the status of a process; it returns nil for nil.
func StatusOf(s *agentproto.Status) *procfleet.ProcessStatus {
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
	return &procfleet.LastExit{At: e.At, Known: e.Known, Code: e.Code, Signal: Cut(e.Signal, MaxName), Why: Cut(e.Why, MaxName)}
}

// ServerResult returns a result made by the server in place of an agent's.
func ServerResult(item int, code procfleet.Code, reason procfleet.Reason, message string, now time.Time) procfleet.Result {
	return procfleet.Result{
		Item: item, Code: code, Reason: reason, Rank: procfleet.RankServer,
		Message: Cut(message, procfleet.MaxMessage), FinishedAt: now,
	}
}

// Limits of texts from agents.
const (
	MaxName     = 128 // bytes of an id, a version or a reason
	maxWarnings = 16
	maxWarning  = 512 // bytes
)

func cutWarnings(warnings []string) (kept []string) {
	for _, w := range warnings[:min(len(warnings), maxWarnings)] {
		kept = append(kept, Cut(w, maxWarning))
	}
	return kept
}

// Cut truncates s to at most limit bytes of valid UTF-8.
func Cut(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}

// ParseHost parses "<cloud area>:<ip>" and checks that the cloud area is the one in the
// subject. NATS permissions restrict agents to the subjects of their area.
func ParseHost(text, subject string) (procfleet.Host, error) {
	host, err := procfleet.ParseHost(text)
	if err != nil {
		return procfleet.Host{}, err
	}
	area := subject[strings.LastIndexByte(subject, '.')+1:]
	if area != strconv.FormatInt(int64(host.Cloud), 10) {
		return procfleet.Host{}, fmt.Errorf("host %s sent on subject %s of another cloud area", host, Cut(subject, MaxName))
	}
	return host, nil
}
