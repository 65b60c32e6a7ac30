package natsconn

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/invalid"
)

// checkURLs rejects URLs that can never be dialed: the client library would accept
// any scheme and retry forever.
func checkURLs(urls string) error {
	schemes := map[bool]bool{} // keys: whether a server uses WebSocket
	for server := range strings.SplitSeq(urls, ",") {
		server = withScheme(server)
		u, err := url.Parse(server)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return invalid.Fieldf("URL", "%s is not the URL of a NATS server, for example nats://10.0.0.9:4222", shown(server, urls))
		}
		if _, err := strconv.ParseUint(cmp.Or(u.Port(), "4222"), 10, 16); err != nil {
			return invalid.Fieldf("URL", "%s has no port from 0 to 65535, for example nats://10.0.0.9:4222", shown(server, urls))
		}
		schemes[strings.HasPrefix(u.Scheme, "ws")] = true
	}
	if len(schemes) > 1 {
		return invalid.Fieldf("URL", "WebSocket URLs (ws, wss) cannot be combined with other URLs: give servers of one kind")
	}
	return nil
}

// withScheme returns the URL of a server, whose scheme may be missing.
func withScheme(server string) string {
	server = strings.TrimSpace(server)
	if !strings.Contains(server, "://") {
		return "nats://" + server
	}
	return server
}

// shown formats server, one entry of the comma-separated list urls, for errors, without
// user and password. If urls contains an "@", shown omits everything of server before its
// last "@", or all of server after the scheme if it has none: a comma in a password may
// have split one URL into several entries.
func shown(server, urls string) string {
	if !strings.Contains(urls, "@") {
		return strconv.Quote(server)
	}
	scheme, rest, _ := strings.Cut(server, "://")
	host := ""
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		host = rest[at:]
	}
	return strconv.Quote(scheme+"://xxxxx"+host) + " (in users and passwords, write special characters like %40 for @)"
}

// outageReminder is the interval between log lines during an outage.
const outageReminder = time.Minute

// outage is the period without a connection. It logs the cause at once and then
// every minute, because the client library does not log while it retries.
type outage struct {
	log logrus.FieldLogger

	mu     sync.Mutex
	err    error     // cause of the outage; nil while connected
	logged time.Time // time of the last log line
}

var errNotReached = errors.New("no server was reached")

// failed records a failed attempt to connect; server may be empty.
func (o *outage) failed(err error, server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	if time.Since(o.logged) < outageReminder {
		return
	}
	o.logged = time.Now()
	log := o.log.WithError(err)
	if server != "" {
		log = log.WithField("server", server)
	}
	log.Warn("NATS unreachable, retrying")
}

// begins records that the connection was lost; err is nil if this process closed it.
func (o *outage) begins(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = cmp.Or(err, nats.ErrConnectionClosed)
}

func (o *outage) ends() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = nil
}

func (o *outage) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// dialer dials and records failed attempts in the outage.
type dialer struct {
	net.Dialer
	outage *outage
}

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		d.outage.failed(err, address)
	}
	return conn, err
}

// Unavailable returns an error with the cause if nc, which [Connect] returned, is currently
// not connected. Unlike the methods of nats.Conn it does not block while a reconnection is
// in progress.
func Unavailable(nc *nats.Conn) error {
	d, ours := nc.Opts.CustomDialer.(*dialer)
	switch {
	case ours:
		return d.outage.cause()
	case nc.IsConnected():
		return nil
	}
	return errNotReached
}
