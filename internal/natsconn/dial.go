package natsconn

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/invalid"
)

// checkURLs refuses what could never be reached. The client library takes any
// scheme, and then dials for ever.
func checkURLs(urls string) error {
	for server := range strings.SplitSeq(urls, ",") {
		server = strings.TrimSpace(server)
		if !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return invalid.Fieldf("URL", "%q is not the URL of a NATS server, for example nats://10.0.0.9:4222", server)
		}
	}
	return nil
}

// awayInterval is how often a server that stays away is mentioned.
const awayInterval = 10 * time.Second

// dialer says in the log why servers are not reached, which the client
// library keeps to itself while it tries again. A connection dials one
// server after the other, so nothing here is locked.
type dialer struct {
	net.Dialer
	log  logrus.FieldLogger
	said time.Time // zero after a success
}

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	switch {
	case err == nil:
		d.said = time.Time{}
	case time.Since(d.said) >= awayInterval:
		d.said = time.Now()
		d.log.WithError(err).WithField("server", address).Warn("NATS not reached, trying again")
	}
	return conn, err
}
