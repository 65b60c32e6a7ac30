package auth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// Caller is a calling application and the user for whom it calls.
type Caller struct {
	Application string            // application code
	User        string            // "" if the call is for no user
	app         *apps.Application // nil if authentication is disabled; the caller then has all permissions
}

// Stored returns the caller of a stored request: an application, with its present permissions, and a
// user, who were authenticated when the request was stored.
func (g *Authenticator) Stored(application, user string) (Caller, error) {
	who := Caller{Application: application, User: user}
	if g.apps == nil {
		return who, nil
	}
	var err error
	if who.app, err = g.apps.Application(application); err != nil {
		return who, &dialect.Error{
			Kind: dialect.UnknownApplication, Application: application,
			Problem: fmt.Sprintf("application %q, which stored the request, does not exist", application),
		}
	}
	return who, nil
}

// Authenticated reports whether the caller was authenticated and has limited
// permissions.
func (c *Caller) Authenticated() bool { return c.app != nil }

// May returns an error unless the caller has permission for all actions in the
// business; "" means a call for no particular business. Empty actions are ignored.
func (c *Caller) May(business string, actions ...string) error {
	if err := c.MayDo(actions...); err != nil {
		return err
	}
	if c.app == nil || c.app.Covers(business) {
		return nil
	}
	what := "may not act for business " + business
	if business == "" {
		what = "is limited to some businesses, and this call requires permission for all of them"
	}
	return c.forbidden(what, dialect.Denied{Actions: actions, Business: business})
}

// MayDo is May without the check of a business.
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

// MaySubmit is May for the business and all actions of a submission.
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

// Sees reports whether the caller may read a task: its application created the task or
// has permission for the task's business.
func (c *Caller) Sees(t *procfleet.Task) bool {
	return c.app == nil || t.Application == c.Application || c.app.Covers(t.Business)
}

// MayRead returns a [*HiddenError] unless the caller may read the task.
func (c *Caller) MayRead(t *procfleet.Task) error {
	if c.Sees(t) {
		return nil
	}
	denied := dialect.Denied{Actions: []string{apps.Reading}, Business: t.Business}
	problem := "application " + c.Application + " did not create this task and may not act for its business"
	return &HiddenError{&dialect.Error{Kind: dialect.Forbidden, Problem: problem, Application: c.Application, Denied: denied, Task: t.ID}}
}

// HiddenError is a refusal that is logged and audited in full, but reported to the
// caller as [taskstore.ErrNotFound]: it cannot probe for task ids of other
// applications.
type HiddenError struct{ Refusal *dialect.Error }

func (h *HiddenError) Error() string { return h.Refusal.Error() }

func (h *HiddenError) Unwrap() error { return taskstore.ErrNotFound }

// StillReads reports whether a caller authenticated earlier may still read a task: its
// application may have been changed or removed since.
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

// Refusals maps failure kinds that reject a caller to the "reason" label in metrics.
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
