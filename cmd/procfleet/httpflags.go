package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/peercred"
)

// httpFlags are the flags of a dispatcher's HTTP listener: its address, permitted
// callers, and request limits.
type httpFlags struct {
	listen               string
	listenTLS            tlsflags.Server
	allowUnauthenticated bool
	allowLocalUsers      bool
	apps, login, trusted string
	noConsole            bool
	loginTLS             tlsflags.Client
	webhooks             receiverFlags
	maxBody              int64
	maxItems             int
	connections          int
	slack, retention     time.Duration
}

func (f *httpFlags) register(flags *pflag.FlagSet) {
	d := dispatcher.Config{}.WithDefaults()
	flags.StringVar(&f.listen, "http", d.Listen, "HTTP listen address, or unix:PATH for a Unix socket")
	f.listenTLS.Register(flags, "http")
	flags.IntVar(&f.connections, "http-connections", 20_000, "concurrent connections to --http; excess connections are closed")
	flags.BoolVar(&f.allowUnauthenticated, "allow-unauthenticated", false,
		"unauthenticated callers on non-loopback addresses; test networks only")
	flags.BoolVar(&f.allowLocalUsers, "allow-local-users", false,
		"access for all local accounts on loopback without --apps")
	flags.StringVar(&f.apps, "apps", "", "applications file for caller authentication, see procfleet app")
	flags.StringVar(&f.login, "login-url", "", "URL of the BlueKing login server for bk_token verification")
	f.loginTLS.Register(flags, "login-url", "the login server")
	f.webhooks.register(flags, "webhook", "dispatchers")
	flags.StringVar(&f.trusted, "trusted-esb", "", "CIDRs of ESB gateways trusted for the Bk-App-Code header")
	flags.BoolVar(&f.noConsole, "no-console", false, "no web console at /ui/")
	flags.Int64Var(&f.maxBody, "max-body", d.Limits.Body, "maximum request body in bytes")
	flags.IntVar(&f.maxItems, "max-items", d.Limits.Items, "maximum items (processes times hosts) of a request")
	flags.DurationVar(&f.slack, "slack", d.Slack, "task time allowance beyond the operation timeouts")
	flags.DurationVar(&f.retention, "retention", d.Retention, "retention of tasks after their deadline")
}

func (f *httpFlags) config() dispatcher.Config {
	trusted, _ := prefixes(f.trusted) // check has reported errors
	return dispatcher.Config{
		Listen: f.listen, AllowUnauthenticated: f.allowUnauthenticated, AllowLocalUsers: f.allowLocalUsers,
		NoConsole: f.noConsole, AppsFile: f.apps, LoginURL: f.login, TrustedESB: trusted,
		Limits: dispatcher.Limits{Body: f.maxBody, Items: f.maxItems},
		Slack:  f.slack, Retention: f.retention,
		Webhooks: f.webhookReceivers(),
		Version:  command.Version(),
	}
}

// webhookReceivers returns the permitted receivers of webhooks. If only local callers can set
// webhooks, it permits all: such callers can connect to local addresses anyway.
func (f *httpFlags) webhookReceivers() destination.Policy {
	if f.apps == "" && !f.allowUnauthenticated {
		return destination.Anywhere()
	}
	return f.webhooks.policy()
}

func (f *httpFlags) check(s *settings.Settings) {
	s.AtLeast(1, "http-connections", "max-body", "max-items", "slack", "retention")
	if path, is := f.socketPath(); is {
		s.Check("http", daemon.CheckSocket(path))
	} else {
		s.Check("http", daemon.CheckAddress(f.listen))
	}
	f.listenTLS.Check(s)
	f.loginTLS.CheckHTTPS(s, f.login)
	f.webhooks.check(s)
	_, err := prefixes(f.trusted)
	s.Check("trusted-esb", err)
	if f.apps != "" {
		_, err := apps.Read(f.apps)
		s.Check("apps", err)
	}
	s.Refused(f.config().WithDefaults().Validate(), map[string]string{
		"Listen": "http", "LoginURL": "login-url", "TrustedESB": "trusted-esb", "Limits.Body": "max-body", "Limits.Items": "max-items", "Slack": "slack", "Retention": "retention",
	})
}

// prefixes parses comma-separated networks and addresses.
func prefixes(texts string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	for text := range strings.SplitSeq(texts, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
			addr = addr.Unmap()
			found = append(found, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network like 10.0.0.0/24", text)
		}
		if prefix.Bits() == 0 {
			return nil, fmt.Errorf("%q trusts every caller to name any application: give the addresses of the ESB gateways", text)
		}
		found = append(found, prefix.Masked())
	}
	return found, nil
}

// open binds the address of --http. Roles call it first, so that an address in use is
// reported before anything changes.
func (f *httpFlags) open(ctx context.Context, p *daemon.Process) (*daemon.Listener, error) {
	files, err := f.listenTLS.Open(p.Log)
	if err != nil {
		return nil, err
	}
	return daemon.Listen(ctx, "--http", f.listen, files, f.connections)
}

// socketName is the name of the Unix socket of `up` in its data directory.
const socketName = "http.sock"

// openSocket binds the Unix socket in the data directory, which this process has
// locked. It returns nil if that fails, or if the kernel provides no peer
// credentials: then the socket has no advantage over --http.
func (f *httpFlags) openSocket(ctx context.Context, folder string, p *daemon.Process) net.Listener {
	if !peercred.Supported {
		return nil
	}
	path := filepath.Join(folder, socketName)
	err := daemon.CheckSocket(path)
	if err == nil {
		var socket *daemon.Listener
		if socket, err = daemon.Listen(ctx, "--data", daemon.UnixSocket+path, nil, f.connections); err == nil {
			return socket
		}
	}
	p.Log.WithError(err).Info("Unix socket unavailable, serving --http only")
	return nil
}

// socketPath returns the path of --http if it is a Unix socket.
func (f *httpFlags) socketPath() (path string, is bool) {
	return strings.CutPrefix(f.listen, daemon.UnixSocket)
}

// url returns the address of the listener in the format of --server.
func (f *httpFlags) url(l *daemon.Listener) string {
	if _, is := f.socketPath(); is {
		return f.listen
	}
	if f.listenTLS.None() {
		return "http://" + l.Addr().String()
	}
	return "https://" + l.Addr().String()
}
