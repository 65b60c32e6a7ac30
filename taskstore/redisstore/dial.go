package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/procfleet/procfleet/internal/tlsfiles"
)

const (
	dialTimeout = 5 * time.Second // go-redis's own default
	keepAlive   = 5 * time.Minute // likewise
)

// dialer makes the connections of a rediss:// URL with what is in the files by
// then. nil leaves it to go-redis, which reads them never again and takes one
// name for all servers of a cluster. byURL is what the URL says of TLS, nil if
// it does not ask for it.
func dialer(byURL *tls.Config, files *tlsfiles.Client, timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if byURL == nil {
		return nil
	}
	plain := &net.Dialer{Timeout: cmp.Or(timeout, dialTimeout), KeepAlive: keepAlive}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		cfg := byURL.Clone()
		cfg.ServerName = "" // the host of addr
		if files != nil {
			now := files.Config()
			cfg.RootCAs, cfg.Certificates = now.RootCAs, now.Certificates
		}
		return (&tls.Dialer{NetDialer: plain, Config: cfg}).DialContext(ctx, network, addr)
	}
}
