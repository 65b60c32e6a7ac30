package dispatcher

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/auth"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/audit"
)

// origin returns the user, the address and the id of the request, for audit records and
// tasks.
func (e *exchange) origin() procfleet.Origin { return originOf(&e.who, peer(e.r), e.id) }

// originOf returns an Origin with the user's name truncated; from is the zero address
// for a published submission.
func originOf(who *auth.Caller, from netip.Addr, request string) procfleet.Origin {
	o := procfleet.Origin{User: who.User, Request: request}
	if len(o.User) > procfleet.MaxOriginPart {
		o.User = strings.ToValidUTF8(o.User[:procfleet.MaxOriginPart], "")
	}
	if from.IsValid() {
		o.Address = from.String()
	}
	return o
}

// audit records an accepted task. If it returns an error, no chunk of the task may be
// queued.
func (s *submitter) audit(ctx context.Context, task *procfleet.Task, chunks []procfleet.Chunk) error {
	if s.cfg.Audit == nil {
		return nil
	}
	r := audit.OfTask(audit.Accepted, task)
	named := make(map[string]bool)
	for i := range chunks {
		c := &chunks[i]
		for n := range c.Specs {
			if key := c.Specs[n].Key(); !named[key] {
				named[key] = true
				r.AddProcess(key)
			}
		}
		for n := range c.Items { // items of one target are adjacent
			if t := &c.Items[n].Target; n == 0 || *t != c.Items[n-1].Target {
				r.AddTarget(t)
			}
		}
	}
	return s.cfg.Audit.Require(ctx, r)
}

// changeOf returns the record of a change to hosts, processes or namespaces.
func changeOf(what, business string, hosts []procfleet.Host, names ...string) audit.Record {
	r := audit.Record{Change: what, Business: business}
	for _, host := range hosts {
		r.AddTarget(&procfleet.Target{Host: host})
	}
	for _, name := range names {
		if name != "" {
			r.AddProcess(name)
		}
	}
	return r
}

// editsOf returns the record of changes to a business's catalog.
func editsOf(what string, b catalog.Business, edits []catalog.Edit) audit.Record {
	r := audit.Record{Change: what, Business: b.Namespace()}
	for i := range edits {
		name := edits[i].Set[catalog.AttrName].String()
		if edits[i].ID != 0 {
			name = strconv.FormatInt(edits[i].ID, 10)
		}
		r.AddProcess(name)
	}
	return r
}

// auditChange records a change before it is made. If it returns an error, the change
// must not be made.
func (e *exchange) auditChange(ctx context.Context, r audit.Record) error {
	o := e.origin()
	r.ID, r.Event, r.At = e.id+"/"+string(audit.Change), audit.Change, time.Now().UTC()
	r.Call, r.Application, r.User, r.Address, r.Request = e.call.Name, e.who.Application, o.User, o.Address, o.Request
	return e.api.cfg.Audit.Require(ctx, r)
}

// auditRefusal records a call that failed. If the caller receives a less specific
// error, the record has the real reason.
func (e *exchange) auditRefusal(err error, f *dialect.Error) {
	if hidden, is := errors.AsType[*auth.HiddenError](err); is {
		f = hidden.Refusal
		f.Call = e.call.Name
		e.log().WithFields(logrus.Fields{"application": f.Application, "task": f.Task, "detail": f.Error()}).Info("request rejected")
	}
	e.api.auditRefusal(f, e.call.action, &e.who, e.origin())
}

// auditRefusal records a call that failed. For a read-only call it records only a
// rejection for missing authentication or permission.
func (a *api) auditRefusal(f *dialect.Error, action string, who *auth.Caller, o procfleet.Origin) {
	reason, refused := auth.Refusals[f.Kind]
	switch {
	case refused:
	case action == apps.Reading:
		return
	default:
		reason = f.Kind.String()
	}
	r := audit.Record{
		ID: o.Request + "/" + string(audit.Refused), Event: audit.Refused, At: time.Now().UTC(),
		Call: f.Call, Application: who.Application, User: o.User, Address: o.Address, Request: o.Request,
		Business: f.Denied.Business, Task: f.Task, Reason: reason, Field: f.Field,
	}
	for _, action := range f.Denied.Actions {
		r.Actions = append(r.Actions, procfleet.Action(action))
	}
	unauthenticated := who.Application == ""
	if unauthenticated {
		r.Claimed = f.Application
	}
	a.cfg.Audit.Refused(r, unauthenticated)
}

// topologyEditOf returns the record of an edit of a topology.
func topologyEditOf(q *dialect.TopologyEdit) audit.Record {
	switch business := q.Business.Namespace(); {
	case q.AutoRegister == nil:
		return changeOf("set hosts of module", business, q.Hosts)
	case *q.AutoRegister:
		return changeOf("switch auto_register on", business, nil)
	default:
		return changeOf("switch auto_register off", business, nil)
	}
}
