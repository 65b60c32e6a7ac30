// Package auth authenticates callers and checks their permissions.
//
// An [Authenticator] reads the applications file and, for users, queries a login
// server. A [Caller] checks actions, businesses and tasks. The functions of
// transport.go reject requests before authentication: by the account that opened a
// connection, by the origin of a web page, and for ambiguous headers.
package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// Config holds the settings of an [Authenticator].
type Config struct {
	AppsFile   string           // applications file; "" disables authentication
	LoginURL   string           // base URL of the login server; "" rejects every bk_token
	LoginTLS   *tlsfiles.Client // TLS files for the login server; nil means the system's certificate authorities
	TrustedESB []netip.Prefix   // addresses of ESBs whose application headers are accepted without a secret
	Meter      metric.Meter
}

// Authenticator authenticates callers. It is safe for concurrent use.
type Authenticator struct {
	apps       *apps.Registry // nil disables authentication
	login      *login         // nil rejects every bk_token
	trusted    []netip.Prefix
	now        func() time.Time
	signatures replays
	metrics    metrics
}

// New returns an authenticator. It reads the applications file if there is one.
func New(cfg *Config) (*Authenticator, error) {
	g := &Authenticator{trusted: cfg.TrustedESB, now: time.Now}
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
	return g, g.register(cfg.Meter)
}

// Enabled reports whether authentication is enabled.
func (g *Authenticator) Enabled() bool { return g.apps != nil }

// Authenticate authenticates the calling application and, if the call needs one, its
// user. peer is the address of an HTTP caller, else the zero address.
func (g *Authenticator) Authenticate(ctx context.Context, at *dialect.Family, in *dialect.Request, peer netip.Addr) (Caller, error) {
	credentials, err := at.Credentials(in)
	if err != nil {
		return Caller{}, err
	}
	if g.apps == nil {
		return Caller{Application: credentials.Application, User: credentials.User}, nil
	}
	app, err := g.application(ctx, &credentials, peer)
	if err != nil {
		return Caller{}, refusal(&credentials, err)
	}
	who := Caller{Application: app.Code, app: app}
	switch {
	case credentials.FromESB:
		who.User = credentials.User
	case at.NeedsUser:
		who.User, err = g.user(ctx, &credentials, app)
	}
	if err != nil {
		return Caller{}, refusal(&credentials, err)
	}
	return who, nil
}

// application authenticates the calling application.
func (g *Authenticator) application(ctx context.Context, credentials *dialect.Credentials, peer netip.Addr) (*apps.Application, error) {
	switch {
	case credentials.Application == "":
		return nil, &dialect.Error{Kind: dialect.NoApplication}
	case credentials.FromESB && !g.trusts(peer):
		return nil, &dialect.Error{Kind: dialect.NoSecret, Problem: "Bk-App-Code without a secret is accepted only from an address of --trusted-esb"}
	case credentials.FromESB:
		return g.apps.Application(credentials.Application)
	case credentials.Signature != nil:
		return g.signed(credentials)
	case credentials.Secret == "":
		return nil, &dialect.Error{Kind: dialect.NoSecret}
	}
	return g.apps.Verify(ctx, credentials.Application, credentials.Secret)
}

func (g *Authenticator) trusts(peer netip.Addr) bool {
	peer = peer.Unmap().WithZone("")
	return slices.ContainsFunc(g.trusted, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// retryBusy is the retry delay for callers whose authentication was not attempted.
const retryBusy = 2 * time.Second

// signatureAge is the maximum difference of a signature's timestamp from now.
const signatureAge = 300 * time.Second

// signed verifies a signature and its timestamp, and rejects replays.
func (g *Authenticator) signed(credentials *dialect.Credentials) (*apps.Application, error) {
	s := credentials.Signature
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
	app, err := g.apps.VerifySignature(credentials.Application, s.Text, s.Value)
	if err == nil && !g.signatures.first(sha256.Sum256([]byte(app.Code+s.Text)), g.now()) {
		return nil, &dialect.Error{Kind: dialect.BadSignature, Problem: "this signature was used before; sign each request with a new bk_nonce"}
	}
	return app, err
}

// user authenticates the user for whom an application calls. A name without a token is
// accepted only from applications with skip_user_auth.
func (g *Authenticator) user(ctx context.Context, credentials *dialect.Credentials, app *apps.Application) (string, error) {
	switch {
	case credentials.Token != "" && g.login == nil:
		return "", &dialect.Error{Kind: dialect.BadToken, Problem: "no bk_token is accepted, because no login server is configured (--login-url)"}
	case credentials.Token != "":
		user, err := g.login.user(ctx, credentials.Token)
		switch {
		case err == nil, ctx.Err() != nil:
			return user, err
		case errors.Is(err, errLoginBusy):
			return "", busy(err)
		case errors.Is(err, errBadToken):
			return "", &dialect.Error{Kind: dialect.BadToken}
		}
		return "", &dialect.Error{Kind: dialect.BadToken, Problem: err.Error()}
	case credentials.User != "" && app.SkipUserAuth:
		return credentials.User, nil
	case credentials.User != "":
		return "", &dialect.Error{Kind: dialect.NoUser, Problem: "bk_username without a bk_token is accepted only from applications with skip_user_auth"}
	case credentials.AccessToken != "":
		return "", &dialect.Error{Kind: dialect.NoUser, Problem: "access_token is not supported"}
	}
	return "", &dialect.Error{Kind: dialect.NoUser}
}

// refusal converts an authentication error to a [*dialect.Error].
func refusal(credentials *dialect.Credentials, err error) error {
	f, ok := errors.AsType[*dialect.Error](err)
	switch {
	case ok:
	case errors.Is(err, apps.ErrUnknown):
		f = &dialect.Error{Kind: dialect.UnknownApplication}
	case errors.Is(err, apps.ErrWrong) && credentials.Signature != nil:
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
	f.Application = credentials.Application
	return f
}

// busy returns the error for a caller whose authentication was not attempted.
func busy(err error) error {
	return &dialect.Error{Kind: dialect.Unavailable, Problem: err.Error() + "; nothing was done, try again later", RetryAfter: retryBusy}
}

// replaysAtOnce bounds each of the two maps of replays. Only valid signatures are
// stored, so only the holder of a signing key can evict entries.
const replaysAtOnce = 100_000

// replays stores the digests of signed requests while their signatures are valid, so
// that each request is accepted once. The zero value is ready for use.
type replays struct {
	mu           sync.Mutex
	newer, older map[[sha256.Size]byte]struct{}
	since        time.Time // creation time of newer
}

// first stores a digest and reports whether it is new.
func (r *replays) first(d [sha256.Size]byte, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A signature from a clock that is ahead can be valid for twice signatureAge.
	if r.newer == nil || now.Sub(r.since) > 2*signatureAge || len(r.newer) >= replaysAtOnce {
		r.newer, r.older, r.since = make(map[[sha256.Size]byte]struct{}), r.newer, now
	}
	for _, known := range []map[[sha256.Size]byte]struct{}{r.newer, r.older} {
		if _, there := known[d]; there {
			return false
		}
	}
	r.newer[d] = struct{}{}
	return true
}
