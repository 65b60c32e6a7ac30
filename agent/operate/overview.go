package operate

import (
	"slices"
	"time"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// Overview returns every process that the engine knows in the order of
// [Engine.Processes], as it is shown on its own host: how it stands and what
// happens to it next. It looks for none and waits for no operation.
func (e *Engine) Overview() []local.Process {
	known := e.snapshots()
	host := e.readHost()
	all := make([]local.Process, 0, len(known))
	for _, key := range inOrder(known) {
		s := known[key]
		m := e.managed(key, s, host)
		all = append(all, s.overview(&m))
	}
	return all
}

// overview shows a snapshot together with its report.
func (s *snapshot) overview(m *agentproto.ManagedProcess) local.Process {
	st := &m.Status
	p := local.Process{
		Key: m.Key, Namespace: m.Namespace, Name: m.Name, ProcName: m.ProcName, Desired: m.Desired,
		State: st.Phase, PID: st.PID, PIDs: slices.Clone(st.PIDs), Since: s.changedAt,
		Restarts: st.Restarts, Failures: st.Failures, LastExit: st.LastExit,
		Limits: local.Limits{CPU: s.spec.CPULimit, Memory: s.spec.MemoryLimit}, Busy: s.busy, GivenUp: s.givenUp,
	}
	if st.Running {
		p.Since = st.StartedAt
	}
	p.NextAction, p.NextAt = s.next(st)
	return p
}

// next is what the engine does by itself with a process, and when.
func (s *snapshot) next(st *agentproto.Status) (action string, at time.Time) {
	switch {
	case s.quarantined:
		return local.NextQuarantined, time.Time{}
	case s.busy != "":
		return local.NextFinish, time.Time{}
	case !s.supervised():
		return local.NextNothing, time.Time{}
	case !s.settled:
		return local.NextLook, time.Time{}
	case !st.FrozenUntil.IsZero():
		return local.NextFrozen, st.FrozenUntil
	case s.held:
		return local.NextHeld, time.Time{}
	case !st.NextRunAt.IsZero():
		return local.NextRun, st.NextRunAt
	case st.Running:
		return local.NextWatch, time.Time{}
	case !st.NextRetryAt.IsZero():
		return local.NextStart, st.NextRetryAt
	case s.phase == supervise.Fatal:
		return local.NextAdopt, time.Time{}
	default:
		return local.NextLook, time.Time{}
	}
}
