package auth

import (
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// Caller is an application that calls, and the user for whom it calls.
type Caller struct {
	Application string            // its code
	User        string            // "" for none
	app         *apps.Application // nil where callers are not authenticated: they may do everything
}

// Authenticated reports whether the rights of the caller are limited at all.
func (c *Caller) Authenticated() bool { return c.app != nil }

// May returns a refusal unless the caller may do the actions for the business;
// "" is a call that is for none. Actions that are "" are ignored.
func (c *Caller) May(business string, actions ...string) error {
	if err := c.MayDo(actions...); err != nil {
		return err
	}
	if c.app == nil || c.app.Covers(business) {
		return nil
	}
	what := "may not act for business " + business
	if business == "" {
		what = "is limited to some businesses, and a call that is for none needs all of them"
	}
	return c.forbidden(what, dialect.Denied{Actions: actions, Business: business})
}

// MayDo is May for any business.
func (c *Caller) MayDo(actions ...string) error {
	if c.app == nil {
		return nil
	}
	actions = slices.DeleteFunc(actions, func(a string) bool { return a == "" })
	if denied := c.app.Denied(actions...); len(denied) > 0 {
		return c.forbidden("lacks the action "+strings.Join(denied, ", "), dialect.Denied{Actions: denied})
	}
	return nil
}

func (c *Caller) forbidden(what string, denied dialect.Denied) error {
	return &dialect.Error{
		Kind: dialect.Forbidden, Problem: "application " + c.Application + " " + what, Application: c.Application, Denied: denied,
	}
}

// MaySubmit is May for the business and every action of a submission.
func (c *Caller) MaySubmit(sub *procfleet.Submission) error {
	if c.app == nil {
		return nil
	}
	var actions []string
	for i := range sub.Operations {
		if action := string(sub.Operations[i].Action); !slices.Contains(actions, action) {
			actions = append(actions, action)
		}
	}
	return c.May(sub.Business, actions...)
}

// Sees reports whether the caller may read a task: it created the task, or may
// act for its business.
func (c *Caller) Sees(t *procfleet.Task) bool {
	return c.app == nil || t.Application == c.Application || c.app.Covers(t.Business)
}

// MayRead returns a [*HiddenError] unless the caller may read the task.
func (c *Caller) MayRead(t *procfleet.Task) error {
	if c.Sees(t) {
		return nil
	}
	denied := dialect.Denied{Actions: []string{apps.Reading}, Business: t.Business}
	problem := "application " + c.Application + " did not make this task and may not act for its business"
	return &HiddenError{&dialect.Error{Kind: dialect.Forbidden, Problem: problem, Application: c.Application, Denied: denied, Task: t.ID}}
}

// HiddenError is a refusal that is logged and audited, and that the caller
// receives as [taskstore.ErrNotFound], so that it cannot search for the ids of
// other applications' tasks.
type HiddenError struct{ Refusal *dialect.Error }

func (h *HiddenError) Error() string { return h.Refusal.Error() }

func (h *HiddenError) Unwrap() error { return taskstore.ErrNotFound }

// StillReads reports whether a caller that was authenticated before may read a
// task now. Its application may have been changed or removed.
func (g *Authenticator) StillReads(who *Caller, t *procfleet.Task) bool {
	if who.app == nil {
		return true
	}
	app, err := g.apps.Application(who.Application)
	if err != nil || app.Secret != who.app.Secret || app.SigningKey != who.app.SigningKey {
		return false
	}
	now := Caller{Application: who.Application, app: app}
	return now.MayDo(apps.Reading) == nil && now.Sees(t)
}

// Refusals are the kinds of failure that refuse a caller, by the reason under
// which they are counted.
var Refusals = map[dialect.Kind]string{
	dialect.NoApplication:      "no_application",
	dialect.NoSecret:           "no_secret",
	dialect.UnknownApplication: "unknown_application",
	dialect.WrongSecret:        "wrong_secret",
	dialect.BadSignature:       "bad_signature",
	dialect.NoUser:             "no_user",
	dialect.BadToken:           "bad_token",
	dialect.BadHeader:          "bad_header",
	dialect.Forbidden:          "forbidden",
}
