package dialect

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/procfleet/procfleet"
)

// nativeRegistering is what is to be registered on hosts, or no longer.
type nativeRegistering struct {
	nativeTargets
	Process  json.RawMessage `json:"process"`
	Strict   *bool           `json:"strict"` // nil is true; not asked to unregister
	Business string          `json:"business"`
}

func decodeNativeRegister(mode RegisterMode) func(r *Request) (Registering, error) {
	return func(r *Request) (Registering, error) {
		return decodeRegistering(r, mode, procfleet.DefaultSpec(), checkRegistered)
	}
}

// checkRegistered checks a process as for an operation, but asks for no
// command: which ones are needed depends on what will be done.
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

// decodeRegistering reads the process over the given one.
func decodeRegistering(
	r *Request, mode RegisterMode, process procfleet.ProcessSpec, check func(s *procfleet.ProcessSpec, strict bool) error,
) (Registering, error) {
	var params nativeRegistering
	if err := decodeNativeBody(r, &params); err != nil {
		return Registering{}, err
	}
	q := Registering{Mode: mode, Process: process, Business: params.Business}
	if err := decodeProcess(params.Process, &q.Process, "process"); err != nil {
		return Registering{}, err
	}
	err := errors.Join(
		procfleet.In("process", check(&q.Process, strict(params.Strict))),
		tooLong("business", q.Business, procfleet.MaxKey),
	)
	if err != nil {
		return Registering{}, refused(err, same)
	}
	q.Targets, err = params.some(0)
	return q, err
}

// nativeTarget is a host as answers name it.
type nativeTarget struct {
	Host    string `json:"host"` // "" if the agent id was not announced
	AgentID string `json:"agent_id,omitempty"`
}

func newNativeTarget(t procfleet.Target) nativeTarget {
	return nativeTarget{Host: t.Host.String(), AgentID: t.AgentID}
}

// nativeOutcome is what came of one host of a call that makes no task.
type nativeOutcome struct {
	nativeTarget
	Code    procfleet.Code `json:"code"`
	Message string         `json:"message"`
}

func newNativeOutcomes(outcomes []TargetOutcome) []nativeOutcome {
	results := make([]nativeOutcome, 0, len(outcomes))
	for _, o := range outcomes {
		results = append(results, nativeOutcome{newNativeTarget(o.Target), o.Code, o.Message})
	}
	return results
}

func nativeOutcomes(outcomes []TargetOutcome) Reply {
	return Reply{Status: http.StatusOK, Body: struct {
		Results []nativeOutcome `json:"results"`
	}{newNativeOutcomes(outcomes)}}
}

func nativeRegistered(_ *Registering, outcomes []TargetOutcome, _ string) Reply {
	return nativeOutcomes(outcomes)
}
