package dispatcher

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

// caller is who a request comes from.
type caller struct {
	code string            // of its application
	user string            // for whom it calls; "" if for nobody
	app  *apps.Application // nil where callers are not asked who they are: they may do everything
}

// authenticator authenticates callers.
type authenticator struct {
	apps    *apps.Registry // nil: callers are who they say
	login   *login         // nil: no bk_token counts
	trusted []netip.Prefix // of ESBs in front
	now     func() time.Time
	// signatures are those that came, so that none counts twice.
	signatures replays

	measures gateMeasures
}

// newAuthenticator opens the file of applications if there is one.
func newAuthenticator(cfg *Config) (*authenticator, error) {
	g := &authenticator{trusted: cfg.TrustedESB, now: time.Now}
	if cfg.AppsFile != "" {
		registry, err := apps.Open(cfg.AppsFile)
		if err != nil {
			return nil, err
		}
		g.apps = registry
	}
	if cfg.LoginURL != "" {
		g.login = newLogin(cfg.LoginURL, cfg.LoginTLS)
	}
	return g, nil
}

// authenticate authenticates the application that calls, then its user.
// peer is where the request comes from, if it came by HTTP.
func (g *authenticator) authenticate(ctx context.Context, at *dialect.Family, in *dialect.Request, peer netip.Addr) (caller, error) {
	said, err := at.Credentials(in)
	if err != nil {
		return caller{}, err
	}
	if g.apps == nil {
		return caller{code: said.Application, user: said.User}, nil
	}
	app, err := g.application(ctx, &said, peer)
	if err != nil {
		return caller{}, notAdmitted(&said, err)
	}
	who := caller{code: app.Code, app: app}
	switch {
	case said.Vouched:
		who.user = said.User
	case at.NeedsUser:
		who.user, err = g.user(ctx, &said, app)
	}
	if err != nil {
		return caller{}, notAdmitted(&said, err)
	}
	return who, nil
}

// application finds out which application calls.
func (g *authenticator) application(ctx context.Context, said *dialect.Credentials, peer netip.Addr) (*apps.Application, error) {
	switch {
	case said.Application == "":
		return nil, &dialect.Error{Kind: dialect.NoApplication}
	case said.Vouched && !g.trusts(peer):
		return nil, &dialect.Error{Kind: dialect.NoSecret, Problem: "Bk-App-Code alone counts only from an address of --trusted-esb"}
	case said.Vouched:
		return g.apps.Application(said.Application)
	case said.Signature != nil:
		return g.signed(said)
	case said.Secret == "":
		return nil, &dialect.Error{Kind: dialect.NoSecret}
	}
	return g.apps.Verify(ctx, said.Application, said.Secret)
}

func (g *authenticator) trusts(peer netip.Addr) bool {
	peer = peer.Unmap().WithZone("")
	return slices.ContainsFunc(g.trusted, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// signatureAge is how old a signature may be, and how far ahead its clock.
const signatureAge = 300 * time.Second

// signed checks a signature and when it was made.
func (g *authenticator) signed(said *dialect.Credentials) (*apps.Application, error) {
	s := said.Signature
	problem := s.Ambiguous
	nonce, err := strconv.ParseInt(s.Nonce, 10, 64)
	if problem == "" && (err != nil || nonce <= 0) {
		problem = "Parameter bk_nonce is illegal, it must be a positive integer"
	}
	seconds, err := strconv.ParseInt(s.Timestamp, 10, 64)
	now := g.now().Unix()
	switch {
	case problem != "":
	case err != nil:
		problem = "Parameter bk_timestamp is illegal, due to non-time format"
	case seconds < now-int64(signatureAge.Seconds()):
		problem = "Parameter bk_timestamp is illegal, because it has expired"
	case seconds > now+int64(signatureAge.Seconds()):
		problem = "Parameter bk_timestamp is illegal, because it is in the future"
	}
	if problem != "" {
		return nil, &dialect.Error{Kind: dialect.BadSignature, Problem: problem}
	}
	app, err := g.apps.VerifySignature(said.Application, s.Text, s.Value)
	if err == nil && !g.signatures.first(sha256.Sum256([]byte(app.Code+s.Text)), g.now()) {
		return nil, &dialect.Error{Kind: dialect.BadSignature, Problem: "this request was made before; sign each with a bk_nonce of its own"}
	}
	return app, err
}

// user finds out for whom an application calls. A name alone is believed of
// applications that may skip the login.
func (g *authenticator) user(ctx context.Context, said *dialect.Credentials, app *apps.Application) (string, error) {
	switch {
	case said.Token != "" && g.login == nil:
		return "", &dialect.Error{Kind: dialect.BadToken, Problem: "no bk_token counts here, since no login server is known (--login-url)"}
	case said.Token != "":
		user, err := g.login.user(ctx, said.Token)
		switch {
		case err == nil, ctx.Err() != nil:
			return user, err
		case errors.Is(err, errLoginBusy):
			return "", busy(err)
		case errors.Is(err, errBadToken):
			return "", &dialect.Error{Kind: dialect.BadToken}
		}
		return "", &dialect.Error{Kind: dialect.BadToken, Problem: err.Error()}
	case said.User != "" && app.SkipUserAuth:
		return said.User, nil
	case said.User != "":
		return "", &dialect.Error{Kind: dialect.NoUser, Problem: "bk_username alone counts only for applications with skip_user_auth"}
	case said.AccessToken != "":
		return "", &dialect.Error{Kind: dialect.NoUser, Problem: "an access_token cannot be checked here"}
	}
	return "", &dialect.Error{Kind: dialect.NoUser}
}

// notAdmitted words why somebody was not let in.
func notAdmitted(said *dialect.Credentials, err error) error {
	f, ok := errors.AsType[*dialect.Error](err)
	switch {
	case ok:
	case errors.Is(err, apps.ErrUnknown):
		f = &dialect.Error{Kind: dialect.UnknownApplication}
	case errors.Is(err, apps.ErrWrong) && said.Signature != nil:
		f = &dialect.Error{Kind: dialect.BadSignature}
	case errors.Is(err, apps.ErrWrong):
		f = &dialect.Error{Kind: dialect.WrongSecret}
	case errors.Is(err, apps.ErrNoSigning):
		f = &dialect.Error{Kind: dialect.BadSignature, Problem: err.Error()}
	case errors.Is(err, apps.ErrBusy):
		return busy(err)
	default:
		return err
	}
	f.Application = said.Application
	return f
}

// busy says that it was not found out who calls.
func busy(err error) error {
	return &dialect.Error{Kind: dialect.Unavailable, Problem: err.Error() + "; nothing was done, try again later", RetryAfter: retryAway}
}

// stillReads reports whether somebody who was admitted may read a task at
// this moment: the application may have changed, or be gone.
func (g *authenticator) stillReads(who *caller, t *procfleet.Task) bool {
	if who.app == nil {
		return true
	}
	app, err := g.apps.Application(who.code)
	if err != nil || app.Secret != who.app.Secret || app.SigningKey != who.app.SigningKey {
		return false
	}
	now := caller{code: who.code, app: app}
	return now.mayDo(apps.Reading) == nil && now.sees(t)
}

// refusals are the kinds of failure that tell callers to stay away, as they
// are counted.
var refusals = map[dialect.Kind]string{
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

// may refuses what the caller must not do for a business; "" is a call that
// is for none. Actions that are "" count as none.
func (c *caller) may(business string, actions ...string) error {
	if err := c.mayDo(actions...); err != nil {
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

// mayDo looks at the actions alone.
func (c *caller) mayDo(actions ...string) error {
	if c.app == nil {
		return nil
	}
	actions = slices.DeleteFunc(actions, func(a string) bool { return a == "" })
	if denied := c.app.Denied(actions...); len(denied) > 0 {
		return c.forbidden("lacks the action "+strings.Join(denied, ", "), dialect.Denied{Actions: denied})
	}
	return nil
}

func (c *caller) forbidden(what string, denied dialect.Denied) error {
	return &dialect.Error{
		Kind: dialect.Forbidden, Problem: "application " + c.code + " " + what, Application: c.code, Denied: denied,
	}
}

// maySubmit looks at everything that a submission asks for.
func (c *caller) maySubmit(sub *procfleet.Submission) error {
	if c.app == nil {
		return nil
	}
	var actions []string
	for i := range sub.Operations {
		if action := string(sub.Operations[i].Action); !slices.Contains(actions, action) {
			actions = append(actions, action)
		}
	}
	return c.may(sub.Business, actions...)
}

// sees reports whether a task is one that the caller may read: it made it, or
// acts for its business.
func (c *caller) sees(t *procfleet.Task) bool {
	return c.app == nil || t.Application == c.code || c.app.Covers(t.Business)
}

// mayRead refuses a task that the caller does not see. The refusal is for the
// log and the audit log: the caller gets the answer for a task that does not
// exist, so that ids of others cannot be found by trying.
func (c *caller) mayRead(t *procfleet.Task) error {
	if c.sees(t) {
		return nil
	}
	denied := dialect.Denied{Actions: []string{apps.Reading}, Business: t.Business}
	problem := "application " + c.code + " did not make this task and may not act for its business"
	return &hiddenError{&dialect.Error{Kind: dialect.Forbidden, Problem: problem, Application: c.code, Denied: denied, Task: t.ID}}
}

// hiddenError is a refusal that its caller must take for [taskstore.ErrNotFound].
type hiddenError struct{ refusal *dialect.Error }

func (h *hiddenError) Error() string { return h.refusal.Error() }

func (h *hiddenError) Unwrap() error { return taskstore.ErrNotFound }
