package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// confirmAbove is the number of hosts above which a viewer must type the number to submit an operation.
const confirmAbove = 50

// operateForm is the form of an operation: either processes of the catalog of a business, or one registered
// process.
type operateForm struct {
	Action    string
	Business  string // of the catalog; "" for a registered process
	Select    string // pattern of the name, in the catalog
	Sets      string // separated by commas or spaces, as are the others
	Modules   string
	Labels    string
	Namespace string // of a registered process
	Name      string
	Hosts     string
	Policy    string
	Window    string // hosts at work, instead of a policy
	Failures  string // tolerated, with Window
	Timeout   string
	QueueFor  string
}

// operateView is the content of the page to submit an operation.
type operateView struct {
	Form     operateForm
	Actions  []procfleet.Action
	Policies []string // names of the stored rollout policies of the business or namespace
	Planned  *planned // nil before the form was sent
	Problem  *problem
	Key      string // idempotency key: a form that is sent twice creates one task
}

// planned is a plan with what a viewer sees of it.
type planned struct {
	Plan         client.Plan
	Shown        []plannedRow
	Hidden       int  // rows that are not shown
	Newer        bool // later tasks have operated processes of the plan
	Confirm      bool // the viewer must type the number of hosts
	ConfirmAbove int
}

type plannedRow struct {
	Name   string
	Action procfleet.Action
	Host   client.PlannedHost
}

func (v *visit) operateForm() operateForm {
	return operateForm{
		Action: v.query("action"), Business: v.business(), Select: v.query("select"), Sets: v.query("sets"), Modules: v.query("modules"),
		Labels: v.query("labels"), Namespace: v.query("namespace"), Name: v.query("name"), Hosts: v.query("hosts"), Policy: v.query("policy"),
		Window: v.query("window"), Failures: v.query("failures"), Timeout: v.query("timeout"), QueueFor: v.query("queue_for"),
	}
}

// words splits a list that a viewer has typed.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n;", r) })
}

// submission returns the request of the form.
func (f *operateForm) submission() (client.Submission, error) {
	s := client.Submission{Business: f.Business, Policy: f.Policy}
	var hosts []procfleet.Host
	for _, text := range words(f.Hosts) {
		host, err := parseHost(text)
		if err != nil {
			return s, invalid("hosts", err.Error())
		}
		hosts = append(hosts, host)
	}
	operation := client.Operation{Action: procfleet.Action(f.Action)}
	if f.Select != "" {
		operation.Select = &procfleet.Selection{
			Name: f.Select, Sets: words(f.Sets), Modules: words(f.Modules), Labels: words(f.Labels), Hosts: hosts,
		}
	} else {
		operation.Registered, operation.Hosts = true, hosts
		operation.Process.Namespace, operation.Process.Name = f.Namespace, f.Name
	}
	s.Operations = []client.Operation{operation}
	return s, f.limits(&s)
}

// limits adds the durations and the rollout of the form to a request.
func (f *operateForm) limits(s *client.Submission) error {
	if f.Window != "" {
		amount, err := procfleet.ParseAmount(f.Window)
		if err != nil {
			return invalid("window", err.Error())
		}
		s.Rollout = &procfleet.RolloutPolicy{MaxConcurrency: amount}
		if f.Failures != "" {
			tolerated, err := procfleet.ParseAmount(f.Failures)
			if err != nil {
				return invalid("failures", err.Error())
			}
			s.Rollout.MaxFailures = &tolerated
		}
	}
	if f.Timeout != "" {
		if err := s.Timeout.UnmarshalJSON(strconv.AppendQuote(nil, f.Timeout)); err != nil {
			return invalid("timeout", err.Error())
		}
	}
	if f.QueueFor != "" {
		s.Queue = &procfleet.HostQueue{}
		if err := s.Queue.For.UnmarshalJSON(strconv.AppendQuote(nil, f.QueueFor)); err != nil {
			return invalid("queue_for", err.Error())
		}
	}
	return nil
}

// showOperate shows the form, and the plan of a form that was sent.
func showOperate(ctx context.Context, v *visit) (any, error) {
	view := operateView{Form: v.operateForm(), Actions: allActions, Key: uuid.NewString()}
	var err error
	if view.Policies, err = v.policies(ctx, &view.Form); err != nil {
		return nil, err
	}
	if v.query("plan") == "" {
		return view, nil
	}
	plan, err := v.plan(ctx, &view.Form)
	if err != nil {
		if signedOut(err) {
			return nil, err
		}
		p := v.problem(err)
		view.Problem = &p
		return view, nil
	}
	view.Planned = newPlanned(&plan)
	return view, nil
}

func newPlanned(plan *client.Plan) *planned {
	p := &planned{Plan: *plan, Confirm: plan.Hosts > confirmAbove, ConfirmAbove: confirmAbove}
	for _, o := range plan.Operations {
		for _, h := range o.Hosts {
			p.Newer = p.Newer || h.NewerTask != ""
			if len(p.Shown) == rows {
				p.Hidden++
				continue
			}
			p.Shown = append(p.Shown, plannedRow{o.Name, o.Action, h})
		}
	}
	return p
}

// confirmed checks that the viewer has confirmed the number of hosts that the plan has now.
func (v *visit) confirmed(plan *client.Plan) error {
	if was, err := v.number("planned"); err != nil || was != plan.Hosts {
		return &client.Error{Status: http.StatusConflict, Field: "hosts", Message: "the plan has " + strconv.Itoa(plan.Hosts) + " hosts now: look at it again"}
	}
	if plan.Hosts > confirmAbove && v.query("confirm") != strconv.Itoa(plan.Hosts) {
		return invalid("confirm", "type "+strconv.Itoa(plan.Hosts)+", the number of hosts, to submit the operation")
	}
	return nil
}

// policies returns the names of the stored rollout policies that apply to the form; none if the viewer may
// not read them.
func (v *visit) policies(ctx context.Context, f *operateForm) ([]string, error) {
	of := cmp.Or(f.Business, f.Namespace)
	if of == "" {
		return nil, nil
	}
	stored, err := v.api.RolloutPolicies(ctx, of)
	if signedOut(err) {
		return nil, err
	}
	if err != nil {
		return nil, nil //nolint:nilerr // the plan says what is wrong with the business or namespace
	}
	var names []string
	for _, p := range stored.Policies {
		names = append(names, p.Name)
	}
	return names, nil
}

func (v *visit) plan(ctx context.Context, f *operateForm) (client.Plan, error) {
	s, err := f.submission()
	if err != nil {
		return client.Plan{}, err
	}
	return v.api.Plan(ctx, s)
}

// operate submits the operation of a plan that the viewer has confirmed. It requests the plan again: if
// the number of hosts is not the confirmed one any more, it submits nothing.
func operate(ctx context.Context, v *visit) (string, error) {
	f := v.operateForm()
	planned, err := v.plan(ctx, &f)
	if err != nil {
		return "", err
	}
	if err := v.confirmed(&planned); err != nil {
		return "", err
	}
	s, err := f.submission()
	if err != nil {
		return "", err
	}
	s.IdempotencyKey = v.query("key")
	id, err := v.api.Submit(ctx, s)
	return Prefix + "tasks/" + url.PathEscape(string(id)), err
}

// operateLink returns the address of the form for a registered process, on one host or on all.
func operateLink(action procfleet.Action, namespace, name string, hosts ...procfleet.Host) string {
	texts := make([]string, len(hosts))
	for i, h := range hosts {
		texts[i] = h.String()
	}
	slices.Sort(texts)
	return Prefix + "operate?" + url.Values{
		"action": {string(action)}, "namespace": {namespace}, "name": {name}, "hosts": {strings.Join(texts, " ")}, "plan": {"1"},
	}.Encode()
}
