package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/label"
)

// nativeOperation is one operation of a [v1.TaskRequest].
type nativeOperation struct {
	v1.Operation
	Process json.RawMessage `json:"process"`
	Select  json.RawMessage `json:"select"`
	Hosts   []string        `json:"hosts"`
}

// nativeSubmission is the body of a [v1.TaskRequest].
type nativeSubmission struct {
	nativeOperation
	v1.TaskOptions
	Operations []nativeOperation `json:"operations"`
	Timeout    json.RawMessage   `json:"timeout"`
}

func decodeNativeTask(params *nativeSubmission) (procfleet.Submission, error) {
	s := procfleet.Submission{Business: params.Business, Callback: params.Callback}
	err := params.operations(&s)
	if err != nil && s.Operations == nil {
		return s, err
	}
	s.Rollout, s.Queue = params.Rollout, params.Queue
	if params.Timeout != nil {
		var timeout procfleet.Duration
		if wrong := timeout.UnmarshalJSON(params.Timeout); wrong != nil {
			err = errors.Join(err, invalid("timeout", "%s", wrong.Error()))
		}
		s.Timeout = timeout.Std()
	}
	return s, errors.Join(err, s.Validate(), tooLong("business", s.Business, procfleet.MaxKey), tooLong("callback", s.Callback, procfleet.MaxPath))
}

// operations decodes all operations, and derives the business from their selections.
func (p *nativeSubmission) operations(s *procfleet.Submission) error {
	written, single := p.Operations, p.Operations == nil
	switch {
	case single:
		written = []nativeOperation{p.nativeOperation}
	case p.Action != "" || p.Process != nil || p.Registered || p.Select != nil || p.Hosts != nil || p.Agents != nil:
		return invalid("operations", "stands beside a single operation; give one or the other")
	}
	check := (*procfleet.Operation).Validate
	if !strict(p.Strict) {
		check = (*procfleet.Operation).ValidateBounds
	}
	s.Operations = make([]procfleet.Operation, 0, len(written))
	var accounts []string
	var errs []error
	for i := range written {
		prefix := "operations[" + strconv.Itoa(i) + "]."
		if single {
			prefix = ""
		}
		o, account, err := written[i].operation(prefix, check)
		if err != nil {
			errs = append(errs, err)
		}
		if len(errs) > maxProblems {
			break
		}
		if o.Selection != nil {
			accounts = append(accounts, account)
		}
		s.Operations = append(s.Operations, o)
	}
	if accounts != nil && errs == nil {
		var err error
		s.Business, err = selecting(p.Business, accounts)
		return err
	}
	return errors.Join(errs...)
}

// strict reports whether an error of a single process rejects the whole request. If not,
// the operation fails on the hosts of that process. The default is true.
func strict(given *bool) bool { return given == nil || *given }

// operation decodes and validates the operation at prefix. The account is the account of
// its selection.
func (p *nativeOperation) operation(prefix string, check func(*procfleet.Operation) error) (o procfleet.Operation, account string, err error) {
	o = procfleet.Operation{Action: p.Action, Registered: p.Registered}
	selected, err := selection(p.Select, prefix+"select")
	switch {
	case selected != nil:
		o.Selection, account = &selected.Selection, selected.Account
	case !p.Registered:
		o.Process = procfleet.DefaultSpec()
	}
	err = errors.Join(err, decodeProcess(p.Process, &o.Process, prefix+"process"))
	var badTargets error
	o.Targets, badTargets = readTargets(p.Hosts, p.Agents, prefix)
	if err == nil {
		err = below(prefix, check(&o))
	}
	return o, account, errors.Join(err, badTargets)
}

// below adds the prefix of an operation to the fields of an error.
func below(prefix string, err error) error {
	if prefix == "" {
		return err
	}
	return procfleet.In(strings.TrimSuffix(prefix, "."), err)
}

// decodeProcess decodes a process into a spec that contains the defaults. raw is nil if
// the body has no process.
func decodeProcess(raw json.RawMessage, into *procfleet.ProcessSpec, field string) error {
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return processError(err, raw, field)
	}
	return nil
}

// processError returns an error that names the field of a process spec that could not be
// decoded. encoding/json does not report the member for an error of a Duration, which
// decodes itself. Therefore processError decodes the durations one by one.
func processError(err error, process []byte, field string) error {
	if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return decodeError(err, field)
	}
	var parts struct {
		Alive map[string]json.RawMessage `json:"alive"`
	}
	if json.Unmarshal(process, &parts) == nil {
		for _, name := range []string{
			"op_timeout", "start_check_begin", "start_check_end", "stop_check", "stop_grace", "start_interval", "cycle_time",
		} {
			var d procfleet.Duration
			if value, there := parts.Alive[name]; there && d.UnmarshalJSON(value) != nil {
				return decodeError(err, field+".alive."+name)
			}
		}
	}
	return decodeError(err, field)
}

// nativeSelection is the selection of an operation, and the account of the business in
// which it selects.
type nativeSelection struct {
	procfleet.Selection
	Account string `json:"account"`
}

// selection decodes the selection at field; nil if there is none. A filter that is
// empty or null is an error, because it must not select everything.
func selection(raw json.RawMessage, field string) (*nativeSelection, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	var s nativeSelection
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, decodeError(err, field)
	}
	var filters struct{ Sets, Modules, Hosts, Labels json.RawMessage }
	if err := json.Unmarshal(raw, &filters); err != nil {
		return nil, decodeError(err, field)
	}
	switch {
	case filters.Sets != nil && len(s.Sets) == 0:
		return nil, invalid(field+".sets", "is empty; leave it out for all sets")
	case filters.Modules != nil && len(s.Modules) == 0:
		return nil, invalid(field+".modules", "is empty; leave it out for all modules")
	case filters.Hosts != nil && len(s.Hosts) == 0:
		return nil, invalid(field+".hosts", "is empty; leave it out for all hosts")
	case filters.Labels != nil && len(s.Labels) == 0:
		return nil, invalid(field+".labels", "is empty; leave it out for all hosts")
	}
	for i, text := range s.Labels {
		if _, err := label.ParseFilter(text); err != nil {
			return nil, invalid(fmt.Sprintf("%s.labels[%d]", field, i), "%s", err.Error())
		}
	}
	return &s, nil
}

// selecting returns the namespace of the business in whose catalog the operations select
// processes. It is the id of the business for the default account. All operations of a
// submission must have the same account.
func selecting(business string, accounts []string) (string, error) {
	account := accounts[0]
	for _, other := range accounts {
		if other != account {
			return "", invalid("select.account", "is not the same in all operations; divide the request")
		}
	}
	if business == "" {
		return "", invalid("business", "is required with select: whose catalogue it is, for example 2")
	}
	b, err := catalog.ParseBusiness(business)
	switch {
	case err != nil || account == "" || account == b.Account:
	case b.Account != catalog.DefaultAccount:
		err = &procfleet.FieldError{Field: "select.account", Problem: "is not the account of the business; leave it out"}
	default:
		b.Account = account
		err = b.Validate()
	}
	if err != nil {
		return "", err
	}
	return b.Namespace(), nil
}

func nativeAccepted(id procfleet.TaskID, _ string) Reply {
	return Reply{Status: http.StatusCreated, Location: "/v1/tasks/" + string(id), Body: v1.TaskCreated{ID: id}}
}

// Planned reports whether a request to create or retry a task requests only a plan, by the
// parameter plan. A value that is not a boolean is an [*Error].
func Planned(r *Request) (bool, error) {
	values, there := r.Query["plan"]
	if !there {
		return false, nil
	}
	if len(values) == 1 {
		if planned, err := strconv.ParseBool(values[0]); err == nil {
			return planned, nil
		}
	}
	return false, invalid("plan", "is neither true nor false")
}

func nativePlan(p *v1.Plan, _ string) Reply { return ok(p) }
