package dialect

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// maxStart is where the last page of a namespace may begin.
const maxStart = 1_000_000_000

func decodeProcessPage(r *Request) (ProcessPage, error) {
	limit, err := pageLimit(r)
	if err != nil {
		return ProcessPage{}, err
	}
	p := ProcessPage{Business: r.Query.Get("business"), Namespace: r.Query.Get("namespace"), Limit: limit}
	if p.Start, err = pageStart(r); err != nil {
		return ProcessPage{}, err
	}
	return p, checkNamespace(p.Namespace, p.Business)
}

// pageStart reads the parameter start: how many are left out.
func pageStart(r *Request) (int, error) {
	text := r.Query.Get("start")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxStart {
		return 0, invalid("start", "is not a number from 0 to %d", maxStart)
	}
	return n, nil
}

// nextStart is the start of the page after one, as text, as the other lists
// have their cursors; empty at the end.
func nextStart(start, page, total int) string {
	if next := start + page; page > 0 && next < total && next <= maxStart {
		return strconv.Itoa(next)
	}
	return ""
}

// checkNamespace checks the namespace and the business of a call that names
// no process.
func checkNamespace(namespace, business string) error {
	if namespace == "" {
		return required("namespace")
	}
	s := procfleet.DefaultSpec()
	s.Namespace = namespace
	err := errors.Join(s.ValidateBounds(), tooLong("business", business, procfleet.MaxKey))
	if err != nil {
		return refused(err, same)
	}
	return nil
}

func decodeProcessQuery(r *Request) (ProcessQuery, error) {
	var params struct {
		nativeTargets
		Process  json.RawMessage `json:"process"`
		Business string          `json:"business"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return ProcessQuery{}, err
	}
	var process procfleet.ProcessSpec
	if err := decodeProcess(params.Process, &process, "process"); err != nil {
		return ProcessQuery{}, err
	}
	err := errors.Join(procfleet.In("process", process.ValidateIdentity()), tooLong("business", params.Business, procfleet.MaxKey))
	if err != nil {
		return ProcessQuery{}, refused(err, same)
	}
	q := ProcessQuery{Business: params.Business, Namespace: process.Namespace, Name: process.Name}
	q.Targets, err = params.some(maxPage)
	return q, err
}

// nativeProcess is how one process stands on one host, as callers see it.
type nativeProcess struct {
	nativeTarget
	Alive        bool                `json:"alive"`
	Namespace    string              `json:"namespace"`
	Name         string              `json:"name"`
	Registration *nativeRegistration `json:"registration"` // null if it is not registered
	Reported     *nativeReported     `json:"reported"`     // null if no agent reported it
}

type nativeRegistration struct {
	Process      procfleet.ProcessSpec `json:"process"`
	RegisteredAt time.Time             `json:"registered_at"`
}

type nativeReported struct {
	ProcName   string                  `json:"proc_name"`
	Desired    catalog.Desired         `json:"desired"`
	Status     procfleet.ProcessStatus `json:"status"`
	ReportedAt time.Time               `json:"reported_at"`
}

func newNativeProcesses(found []ProcessEntry) []nativeProcess {
	processes := make([]nativeProcess, 0, len(found))
	for i := range found {
		e := &found[i]
		n := nativeProcess{
			nativeTarget: newNativeTarget(e.Target), Alive: e.Alive,
			Namespace: e.Namespace, Name: e.Name,
		}
		n.AgentID = cmp.Or(n.AgentID, e.AgentID)
		if e.Registration != nil {
			n.Registration = &nativeRegistration{e.Registration.Spec, e.Registration.RegisteredAt}
		}
		if e.Reported != nil {
			n.Reported = &nativeReported{e.Reported.ProcName, e.Reported.Desired, e.Reported.Status, e.ReportedAt}
		}
		processes = append(processes, n)
	}
	return processes
}

func nativeShowProcesses(_ *ProcessQuery, found []ProcessEntry, _ string) Reply {
	return Reply{Status: http.StatusOK, Body: struct {
		Processes []nativeProcess `json:"processes"`
	}{newNativeProcesses(found)}}
}

func nativeProcessPage(p *ProcessPage, found []ProcessEntry, total int, _ string) Reply {
	return Reply{Status: http.StatusOK, Body: struct {
		Processes []nativeProcess `json:"processes"`
		Total     int             `json:"total"`
		Next      string          `json:"next"`
	}{newNativeProcesses(found), total, nextStart(p.Start, len(found), total)}}
}
