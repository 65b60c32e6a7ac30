package dialect

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

func decodeNativeRegister(mode RegisterMode) func(r *Request) (Registering, error) {
	return func(r *Request) (Registering, error) {
		return decodeRegistering(r, mode, procfleet.DefaultSpec(), checkRegistered)
	}
}

// checkRegistered validates a process as for an operation, but requires no command: the
// required commands depend on later operations. Unless strict, it validates only the
// identity and the bounds.
func checkRegistered(s *procfleet.ProcessSpec, strict bool) error {
	if err := s.ValidateIdentity(); err != nil {
		return err
	}
	if !strict {
		return s.ValidateBounds()
	}
	return s.Validate(procfleet.ActionStatus)
}

func decodeNativeUnregister(r *Request) (Registering, error) {
	return decodeRegistering(r, Unregister, procfleet.ProcessSpec{}, func(s *procfleet.ProcessSpec, _ bool) error {
		return s.ValidateIdentity()
	})
}

// decodeRegistering decodes a request to register or unregister. process has the
// defaults of absent members, and check validates the decoded process.
func decodeRegistering(
	r *Request, mode RegisterMode, process procfleet.ProcessSpec, check func(s *procfleet.ProcessSpec, strict bool) error,
) (Registering, error) {
	var params struct {
		v1.RegisterRequest
		Process json.RawMessage `json:"process"`
		Hosts   []string        `json:"hosts"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return Registering{}, err
	}
	q := Registering{Mode: mode, Process: process, Business: params.Business}
	err := decodeProcess(params.Process, &q.Process, "process")
	if err == nil {
		err = procfleet.In("process", check(&q.Process, strict(params.Strict)))
	}
	var badTargets error
	q.Targets, badTargets = someTargets(params.Hosts, params.Agents, 0)
	return q, errors.Join(err, tooLong("business", q.Business, procfleet.MaxKey), badTargets)
}

func newNativeOutcomes(outcomes []TargetOutcome) []v1.Outcome {
	results := make([]v1.Outcome, 0, len(outcomes))
	for _, o := range outcomes {
		results = append(results, v1.Outcome{Host: o.Target.Host, AgentID: o.Target.AgentID, Code: o.Code, Message: o.Message})
	}
	return results
}

func nativeOutcomes[Q any](_ *Q, outcomes []TargetOutcome, _ string) Reply {
	return ok(v1.Outcomes{Results: newNativeOutcomes(outcomes)})
}

func decodeProcessPage(r *Request) (ProcessPage, error) {
	from := queryReader{Request: r}
	p := ProcessPage{Business: r.Query.Get("business"), Namespace: r.Query.Get("namespace"), Limit: from.limit(), Start: from.start()}
	return p, errors.Join(from.err, checkNamespace(p.Namespace, p.Business))
}

// checkNamespace validates the namespace and the business of a request that identifies
// no process.
func checkNamespace(namespace, business string) error {
	long := tooLong("business", business, procfleet.MaxKey)
	if namespace == "" {
		return errors.Join(required("namespace"), long)
	}
	s := procfleet.DefaultSpec()
	s.Namespace = namespace
	return errors.Join(s.ValidateBounds(), long)
}

type nativeProcessQuery struct {
	v1.ProcessRequest
	Process json.RawMessage `json:"process"`
	Hosts   []string        `json:"hosts"`
}

func decodeProcessQuery(params *nativeProcessQuery) (ProcessQuery, error) {
	var process procfleet.ProcessSpec
	err := decodeProcess(params.Process, &process, "process")
	if err == nil {
		err = procfleet.In("process", process.ValidateIdentity())
	}
	q := ProcessQuery{Business: params.Business, Namespace: process.Namespace, Name: process.Name}
	var badTargets error
	q.Targets, badTargets = someTargets(params.Hosts, params.Agents, maxPage)
	return q, errors.Join(err, tooLong("business", params.Business, procfleet.MaxKey), badTargets)
}

func newNativeProcesses(found []ProcessEntry) []v1.Process {
	processes := make([]v1.Process, 0, len(found))
	for i := range found {
		e := &found[i]
		n := v1.Process{
			Host: e.Target.Host, AgentID: cmp.Or(e.Target.AgentID, e.AgentID), Alive: e.Alive,
			Namespace: e.Namespace, Name: e.Name, Reported: newNativeReported(e.Reported, e.ReportedAt),
		}
		if e.Registration != nil {
			n.Registration = &v1.Registration{Process: e.Registration.Spec, RegisteredAt: e.Registration.RegisteredAt}
		}
		processes = append(processes, n)
	}
	return processes
}

func newNativeReported(r *catalog.ReportedProcess, at time.Time) *v1.Reported {
	if r == nil {
		return nil
	}
	return &v1.Reported{ProcName: r.ProcName, Desired: string(r.Desired), Status: r.Status, ReportedAt: at}
}

func nativeShowProcesses(_ *ProcessQuery, found []ProcessEntry, _ string) Reply {
	return ok(v1.ProcessList{Processes: newNativeProcesses(found)})
}

func nativeProcessPage(p *ProcessPage, found ProcessEntries, _ string) Reply {
	return ok(v1.ProcessPage{Processes: newNativeProcesses(found.Entries), Total: found.Total, Next: nextStart(p.Start, len(found.Entries), found.Total)})
}
