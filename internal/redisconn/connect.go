package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// takeWaitReplicas removes wait_replicas from the URL, because go-redis rejects unknown
// parameters, and sets Options.WaitReplicas.
func (o *Options) takeWaitReplicas() error {
	const name = "wait_replicas"
	u, err := url.Parse(o.URL)
	if err != nil || !u.Query().Has(name) {
		return nil //nolint:nilerr // connect returns the error of the URL
	}
	query := u.Query()
	n, err := strconv.ParseUint(query.Get(name), 10, 8)
	if err != nil {
		return fmt.Errorf("redis URL: %s=%.20q: give the number of replicas that must have a task before it is accepted, 0 to 255", name, query.Get(name))
	}
	query.Del(name)
	u.RawQuery = query.Encode()
	o.URL, o.WaitReplicas = u.String(), int(n)
	return nil
}

// connect creates the client without dialing. It disables go-redis's retries, because
// only [Conn.persist] knows which calls may be repeated and for how long.
func connect(o Options) (redis.UniversalClient, error) {
	rawURL, files := o.URL, o.TLS
	u, err := url.Parse(rawURL)
	if err != nil {
		if strings.Contains(rawURL, "@") { // the error may quote the password
			err = errors.New("cannot be read; in users and passwords, write special characters like %40 for @")
		}
		return nil, fmt.Errorf("redis URL: %w; write for example redis://127.0.0.1:6379", err)
	}
	query := u.Query()
	switch {
	case query.Has("master_name"):
		opt, err := redis.ParseFailoverURL(rawURL)
		if err != nil {
			return nil, fmt.Errorf("redis URL: %w", err)
		}
		opt.MaxRetries, opt.DialerRetries, opt.ContextTimeoutEnabled = -1, 1, true
		opt.Dialer = dialer(opt.TLSConfig, files, opt.DialTimeout)
		opt.CredentialsProviderContext = o.credentials(opt.Username)
		return redis.NewFailoverClient(opt), nil
	case query.Has("addr"), query.Has("cluster"):
		query.Del("cluster") // our own parameter; go-redis rejects unknown ones
		u.RawQuery = query.Encode()
		opt, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, fmt.Errorf("redis URL: %w", err)
		}
		opt.DialerRetries, opt.ContextTimeoutEnabled = 1, true
		opt.Dialer = dialer(opt.TLSConfig, files, opt.DialTimeout)
		opt.CredentialsProviderContext = o.credentials(opt.Username)
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return redis.NewClusterClient(opt), nil
	}
	opt, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("redis URL: %w; write for example redis://127.0.0.1:6379", err)
	}
	opt.MaxRetries, opt.DialerRetries, opt.ContextTimeoutEnabled = -1, 1, true
	opt.Dialer = dialer(opt.TLSConfig, files, opt.DialTimeout)
	opt.CredentialsProviderContext = o.credentials(opt.Username)
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(opt), nil
}

// SendsTwice reports whether the client may repeat a call after an error without
// returning that error. Only the cluster client does.
func (c *Conn) SendsTwice() bool {
	_, cluster := c.client.(*redis.ClusterClient)
	return cluster
}

// credentials returns a function that reads the user's password; nil if the password is
// in the URL.
func (o Options) credentials(user string) func(context.Context) (string, string, error) {
	if o.Password == nil {
		return nil
	}
	return func(context.Context) (string, string, error) {
		password, err := o.Password()
		return user, password, err
	}
}

const (
	dialTimeout = 5 * time.Second // the default of go-redis
	keepAlive   = 5 * time.Minute // the default of go-redis
)

// dialer returns a function that dials rediss:// with the current content of the TLS
// files. go-redis would read them only once, and would verify one server name for all
// servers of a cluster. byURL is the TLS configuration from the URL; if it is nil,
// dialer returns nil, and go-redis dials.
func dialer(byURL *tls.Config, files *tlsfiles.Client, timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if byURL == nil {
		return nil
	}
	plain := &net.Dialer{Timeout: cmp.Or(timeout, dialTimeout), KeepAlive: keepAlive}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		cfg := byURL.Clone()
		cfg.ServerName = "" // verify the host of addr instead
		if files != nil {
			now := files.Config()
			cfg.RootCAs, cfg.Certificates = now.RootCAs, now.Certificates
		}
		return (&tls.Dialer{NetDialer: plain, Config: cfg}).DialContext(ctx, network, addr)
	}
}

// driverLog logs the messages of go-redis, for example failed dials and nodes that a
// Sentinel reported, at debug level. By default go-redis writes them to stderr. Calls
// also return the errors that matter.
type driverLog struct{ log logrus.FieldLogger }

// Printf implements the logger interface of go-redis.
func (d driverLog) Printf(_ context.Context, format string, v ...any) {
	d.log.WithField("said", fmt.Sprintf(format, v...)).Debug("Redis client message")
}
