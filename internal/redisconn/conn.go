// Package redisconn is the connection of the task store and the catalog to Redis 6.2 or
// later: a single server, a server with replicas under Sentinel, or a cluster. Redis
// must run with appendonly persistence and maxmemory-policy noeviction.
//
// Every call is idempotent, so the connection repeats a call whose reply was lost. After
// [Options.Patience] it returns [taskstore.ErrUnavailable]. On a single server it sends
// the calls of many goroutines in shared batches.
//
// Every key begins with a prefix, "pf:" by default. With [Options.WaitReplicas], each
// key after whose write the connection waited has an empty companion for one minute. Its
// name ends in :wait or is wait:{<key>}.
package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// Options configures a connection.
type Options struct {
	// URL is redis://[user:password@]host:port[/db], or rediss:// for TLS. With
	// ?master_name=NAME the host is a Sentinel. With ?addr=HOST:PORT for each further
	// node, or ?cluster=true, the host is a node of a cluster. ?wait_replicas=N sets
	// WaitReplicas. Other parameters are passed to go-redis, for example pool_size.
	URL string
	// Password, if not nil, returns the password of the URL's user. It is called for
	// each new connection. The password of Sentinels is a parameter of the URL.
	Password func() (string, error)
	// TLS holds the certificate files for rediss://; the default is the system's
	// certificate authorities and no client certificate. Each server, Sentinels
	// included, must present a certificate for the address that is dialed.
	TLS *tlsfiles.Client
	// Prefix is the prefix of every key; default "pf:".
	Prefix string
	// WaitReplicas is the number of replicas that must confirm a write of a task
	// creation, a rejection, results, registrations, groups, freezes, templates,
	// topologies or bound agent ids before the call returns. Default 0: no wait.
	// WaitTimeout bounds the wait; default 1 s.
	WaitReplicas int
	WaitTimeout  time.Duration
	// Patience is how long a call retries while Redis is unavailable, starting, failing
	// over or moving slots, before it returns [taskstore.ErrUnavailable]; default 5 s.
	Patience time.Duration
	// Log receives the log lines of the connection and of the stores on it. Required.
	Log logrus.FieldLogger
}

// Conn is an open connection. Create it with [Open]. It is safe for concurrent use.
type Conn struct {
	client    redis.UniversalClient
	pipeliner *pipeliner // nil in a cluster, because its servers reply independently of each other
	opt       Options
	log       logrus.FieldLogger

	mu      sync.Mutex
	scripts []*redis.Script // scripts of all stores on the connection
}

// Validate returns all errors of the Options, each with its field. It does not connect.
func (o Options) Validate() error {
	var errs []error
	if err := o.checkURL(); err != nil {
		errs = append(errs, invalid.Fieldf("URL", "%w", err))
	}
	if o.WaitReplicas < 0 {
		errs = append(errs, invalid.Fieldf("WaitReplicas", "%d replicas cannot be waited for", o.WaitReplicas))
	}
	if o.WaitTimeout < 0 {
		errs = append(errs, invalid.Fieldf("WaitTimeout", "%v is negative", o.WaitTimeout))
	}
	return errors.Join(errs...)
}

func (o Options) checkURL() error {
	if err := o.takeWaitReplicas(); err != nil {
		return err
	}
	client, err := connect(o)
	if err != nil {
		return err
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	if _, given := u.User.Password(); given && o.Password != nil {
		return errors.Join(errors.New("redis URL: contains a password, and a password file is given too: leave one out"), client.Close())
	}
	for _, server := range append(u.Query()["addr"], u.Host) {
		if at := strings.LastIndexByte(server, ':'); at >= 0 && !strings.HasSuffix(server, "]") {
			if _, err := strconv.ParseUint(server[at+1:], 10, 16); err != nil {
				return errors.Join(fmt.Errorf("redis URL: %q has no port from 0 to 65535", server), client.Close())
			}
		}
	}
	return client.Close()
}

// Open connects to Redis and runs [Conn.Check]. It blocks until the check ends or ctx
// ends. It returns [taskstore.ErrUnavailable] if Redis did not reply within
// [Options.Patience].
//
// go-redis has one logger per process. Open replaces it by opt.Log, at debug level; if
// several connections are opened, the last one counts.
func Open(ctx context.Context, opt Options) (*Conn, error) {
	if opt.Prefix == "" {
		opt.Prefix = "pf:"
	}
	if opt.WaitTimeout == 0 {
		opt.WaitTimeout = time.Second
	}
	if opt.Patience == 0 {
		opt.Patience = 5 * time.Second
	}
	if err := opt.takeWaitReplicas(); err != nil {
		return nil, err
	}
	client, err := connect(opt)
	if err != nil {
		return nil, err
	}
	c := &Conn{client: client, opt: opt, log: opt.Log.WithField("component", "redisstore"), scripts: []*redis.Script{nowScript}}
	if single, ok := client.(*redis.Client); ok {
		c.pipeliner = &pipeliner{client: single, timeout: opt.Patience}
	}
	redis.SetLogger(driverLog{log: c.log})
	if err := c.Check(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return c, nil
}

// Load loads the scripts of a store into every server. The connection loads them again
// when a server has lost them.
func (c *Conn) Load(ctx context.Context, scripts ...*redis.Script) error {
	c.mu.Lock()
	c.scripts = append(c.scripts, scripts...)
	c.mu.Unlock()
	if err := c.persist(ctx, c.loadScripts); err != nil {
		return fmt.Errorf("load scripts: %w", err)
	}
	return nil
}

func (c *Conn) allScripts() []*redis.Script {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.scripts)
}

// Client returns the client of go-redis.
func (c *Conn) Client() redis.UniversalClient { return c.client }

// Prefix returns the prefix of every key.
func (c *Conn) Prefix() string { return c.opt.Prefix }

// Log returns the log of the connection and of the stores on it.
func (c *Conn) Log() logrus.FieldLogger { return c.log }

// SetPatience changes [Options.Patience], for tests; no call may be in flight.
func (c *Conn) SetPatience(d time.Duration) { c.opt.Patience = d }

// Close closes the connection.
func (c *Conn) Close() error { return c.client.Close() }

// nowScript returns the time of the server that stores the clock key.
//
// KEYS[1] clock; only determines the server
// Returns microseconds since the Unix epoch.
var nowScript = redis.NewScript(LuaNow + `return now()`)

// LuaNow defines now, the store's clock in microseconds, and text, which formats such a
// large number without rounding it as Lua would.
const LuaNow = `
local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local function text(n) return string.format('%.0f', n) end
`

// Now returns the time of the server that stores the clock key.
func (c *Conn) Now(ctx context.Context) (time.Time, error) {
	now := c.nowCall()
	if err := c.Run(ctx, now); err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", err)
	}
	return now.Moment()
}

func (c *Conn) nowCall() *Call {
	return &Call{Script: nowScript, Keys: []string{c.ClockKey()}}
}

// ClockKey returns the clock key. Its server's clock is the clock of all stores.
func (c *Conn) ClockKey() string { return c.opt.Prefix + "{index}:clock" }

// ReadAt reads like [Conn.Read] and also returns the store's time.
func (c *Conn) ReadAt(ctx context.Context, add AddFunc) (time.Time, error) {
	if c.pipeliner != nil {
		return c.readWithTime(ctx, add)
	}
	now := c.nowCall()
	if err := c.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		now.Send(ctx, pipe)
		add(ctx, pipe)
	}); err != nil {
		return time.Time{}, err
	}
	return now.Moment()
}

// readWithTime is ReadAt for a single server. It uses TIME instead of a script, because
// there is no other server to choose from.
func (c *Conn) readWithTime(ctx context.Context, add AddFunc) (time.Time, error) {
	var now *redis.TimeCmd
	err := c.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		now = pipe.Time(ctx)
		add(ctx, pipe)
	})
	if err != nil {
		return time.Time{}, err
	}
	return now.Val().UTC(), nil
}

// waitKey returns a key in the slot of another key. It is written before each WAIT,
// because WAIT waits for the last write of its connection: a script whose work was
// already done writes nothing, although a replica may still lack the earlier write.
func (c *Conn) waitKey(key string) string {
	if end := strings.IndexByte(key, '}'); end >= 0 {
		return key[:end+1] + ":wait"
	}
	return c.opt.Prefix + "wait:{" + key + "}" // has the prefix, because the ACL of the user may permit only keys with it
}
