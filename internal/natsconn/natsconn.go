// Package natsconn connects the roles to NATS. Connections reconnect forever, do not
// buffer messages while disconnected, and log outages. Opening a connection does
// not require a running server, so that roles can start in any order.
package natsconn

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/loopback"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

const (
	pingInterval  = 20 * time.Second
	pingsOut      = 2 // unanswered pings before the connection counts as dead
	dialTimeout   = 5 * time.Second
	reconnectWait = 500 * time.Millisecond
	// reconnectJitter spreads the reconnections of a fleet after a broker restart.
	reconnectJitter    = 500 * time.Millisecond
	reconnectJitterTLS = 2 * time.Second
	drainTimeout       = 10 * time.Second
)

// Config configures a connection. Only URL or InProcess is required.
type Config struct {
	// URL lists servers, separated by commas, such as "nats://10.0.0.1:4222".
	URL string
	// InProcess, if set, is a server in this process, used instead of URL.
	InProcess nats.InProcessConnProvider
	// Name identifies the connection in the server's monitoring, such as "worker".
	Name string
	// Credentials, if set, returns the content of a NATS credentials file; empty
	// means no user. It is called for every attempt to connect, so credentials may
	// change.
	Credentials func() ([]byte, error)
	// TLS, if set, requires TLS with these files, regardless of the scheme of URL.
	// It does not apply to InProcess.
	TLS *tlsfiles.Client
	// InboxPrefix is the prefix of reply subjects; default "_INBOX".
	InboxPrefix string
	// ReconnectJitter is the period over which reconnections to a restarted server
	// are spread; minimum and default 500 ms (2 s with TLS).
	ReconnectJitter time.Duration
	// OnReconnect, if set, is called after each reconnection (not after the
	// first connection). It must not block.
	OnReconnect func()
	// OnLost, if set, is called if a server ended the connection permanently, for
	// example because a message exceeded a new limit of the server; the client
	// library then does not reconnect. It must not block, and is not called when
	// this process closes the connection.
	OnLost func(error)
	// Log receives connection events; required.
	Log logrus.FieldLogger
}

// Validate returns all errors in the addresses. It does not connect.
func (cfg Config) Validate() error {
	if cfg.InProcess != nil {
		return nil
	}
	return checkURLs(cfg.URL)
}

// onLoopback reports whether all servers, separated by commas, are on this machine's
// loopback.
func onLoopback(urls string) bool {
	for server := range strings.SplitSeq(urls, ",") {
		if u, err := url.Parse(withScheme(server)); err != nil || !loopback.Host(u.Hostname()) {
			return false
		}
	}
	return true
}

// RefuseUnsigned returns an error if a role without keys must not use these servers:
// they are not on loopback and allow is false. It ignores malformed addresses, which
// [Config.Validate] rejects.
func RefuseUnsigned(urls, flag string, allow bool) error {
	wellFormed := checkURLs(urls) == nil
	if allow || !wellFormed || onLoopback(urls) {
		return nil
	}
	return fmt.Errorf("is required, since NATS is not on loopback: without it messages are not signed, and any client that can publish there "+
		"could run commands on every host. Give --%s, or --allow-unauthenticated on a test network", flag)
}

// Connect returns a connection that reconnects until it is closed. It returns at
// once even if no server is reachable; the connection then retries in the
// background and logs the cause. Publishing while disconnected fails instead of
// being buffered. An error means that the Config is invalid.
func Connect(cfg Config) (*nats.Conn, error) {
	if cfg.Log == nil {
		return nil, errors.New("natsconn: Config.Log is missing")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	nc, err := nats.Connect(cfg.URL, cfg.options()...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return nc, nil
}

func (cfg *Config) options() []nats.Option {
	user := &user{credentials: cfg.Credentials}
	outage := &outage{log: cfg.log(), err: errNotReached}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(dialTimeout),
		nats.SetCustomDialer(&dialer{Dialer: net.Dialer{Timeout: dialTimeout}, outage: outage}),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(max(reconnectJitter, cfg.ReconnectJitter), max(reconnectJitterTLS, cfg.ReconnectJitter)),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsOut),
		nats.DrainTimeout(drainTimeout),
		// The server's configuration may be corrected later.
		nats.IgnoreAuthErrorAbort(),
		nats.NoCallbacksAfterClientClose(),
	}
	opts = append(opts, cfg.handlers(user, outage)...)
	if cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(cfg.InProcess))
	}
	if cfg.Credentials != nil {
		opts = append(opts, nats.UserJWT(user.token, user.sign))
	}
	if cfg.TLS != nil && cfg.InProcess == nil {
		opts = append(opts, secure(cfg.TLS))
	}
	if cfg.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	return opts
}

func (cfg *Config) log() logrus.FieldLogger { return cfg.Log.WithField("component", "nats") }

// handlers returns options that log state changes of the connection.
func (cfg *Config) handlers(user *user, outage *outage) []nats.Option {
	log := cfg.log()
	serverOf := (*nats.Conn).ConnectedUrlRedacted
	if cfg.InProcess != nil {
		serverOf = func(*nats.Conn) string { return "in this process" }
	}
	return []nats.Option{
		nats.ConnectHandler(func(nc *nats.Conn) {
			outage.ends()
			log.WithField("server", serverOf(nc)).Info("connected")
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			err = user.explain(err)
			outage.begins(err)
			if err != nil { // without err, OnLost reports the end
				log.WithError(err).Warn("connection lost, reconnecting")
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { outage.failed(user.explain(err), "") }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			outage.ends()
			log.WithField("server", serverOf(nc)).Info("reconnected")
			if cfg.OnReconnect != nil {
				cfg.OnReconnect()
			}
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if cfg.OnLost != nil {
				cfg.OnLost(fmt.Errorf("the NATS server ended the connection for good: %w", cmp.Or(nc.LastError(), nats.ErrConnectionClosed)))
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) { // the client library reports this error at every attempt
				outage.failed(user.explain(err), "")
				return
			}
			entry := log.WithError(err)
			if sub != nil {
				entry = entry.WithField("subject", sub.Subject)
			}
			entry.Warn("NATS asynchronous error")
		}),
	}
}

// secure makes every connection use the current content of the files.
func secure(files *tlsfiles.Client) nats.Option {
	return func(o *nats.Options) error {
		o.Secure = true
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		o.RootCAsCB = func() (*x509.CertPool, error) { return files.Config().RootCAs, nil }
		if len(files.Config().Certificates) > 0 {
			o.TLSCertCB = func() (tls.Certificate, error) { return files.Config().Certificates[0], nil }
		}
		return nil
	}
}
