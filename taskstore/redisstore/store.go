package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/tlsfiles"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/recent"
)

var (
	_ taskstore.Store = (*Store)(nil)
	_ catalog.Store   = (*Store)(nil)
)

// Options configure a store.
type Options struct {
	// URL is redis://[user:password@]host:port[/db], or rediss:// for TLS.
	// With ?master_name=NAME the host is a Sentinel; with ?addr=HOST:PORT for
	// further nodes, or ?cluster=true, it is a node of a cluster.
	// ?wait_replicas=N sets WaitReplicas. The other parameters are go-redis's
	// own, for example pool_size.
	URL string
	// Password, if not nil, is asked for the password of the URL's user whenever a
	// connection is made. Sentinels have one of their own, in the URL.
	Password func() (string, error)
	// TLS has the certificate files for rediss://; default the system's CAs and no
	// client certificate. Each server, Sentinels too, must present a certificate
	// for the address at which it is dialed.
	TLS *tlsfiles.Client
	// Prefix begins every key; default "pf:".
	Prefix string
	// WaitReplicas is how many replicas must have a creation, a rejection, a
	// batch of results, registrations, groups, freezes, templates, topologies or
	// bound agent ids before they are confirmed; 0, the default, waits for none. WaitTimeout bounds the
	// wait; default 1 s.
	WaitReplicas int
	WaitTimeout  time.Duration
	// Patience is how long a call retries while Redis is unavailable, starts, fails
	// over or moves slots, before it returns [taskstore.ErrUnavailable];
	// default 5 s.
	Patience time.Duration
	// Log is required.
	Log logrus.FieldLogger
}

// Store keeps tasks in Redis. Make it with [Open].
type Store struct {
	client    redis.UniversalClient
	pipeliner *pipeliner // nil in a cluster, where every server has a pace of its own
	keys      keyspace
	opt       Options
	log       logrus.FieldLogger
	// highest is the highest number that this store was given. It is sent with
	// every request for the next one, so that the clock key does not go back
	// after a fail-over that lost its last change.
	highest   atomic.Int64
	highestID atomic.Int64 // likewise, of templates

	headroom headroom
	servers  servers

	caches    *recent.Businesses[businessCache]
	cachesEnd *time.Timer // evicts them when no business is used any longer
}

// Validate reports everything that is wrong, each with its field. It connects
// to nothing.
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

// Open connects to Redis and runs [Store.Check]. It returns when ctx ends, and
// [taskstore.ErrUnavailable] if Redis did not reply within [Options.Patience].
//
// go-redis has one logger for the whole process. Open replaces it by the one of
// opt, at debug level; of several stores the last to be opened counts.
func Open(ctx context.Context, opt Options) (*Store, error) {
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
	s := &Store{
		client: client,
		keys:   keyspace{prefix: opt.Prefix},
		opt:    opt,
		log:    opt.Log.WithField("component", "redisstore"),

		caches: recent.New(func() *businessCache { return &businessCache{} }),
	}
	if single, ok := client.(*redis.Client); ok {
		s.pipeliner = &pipeliner{client: single, timeout: opt.Patience}
	}
	redis.SetLogger(driverLog{log: s.log})
	if err := s.Check(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	if err := s.persist(ctx, s.loadScripts); err != nil {
		return nil, errors.Join(fmt.Errorf("load scripts: %w", err), client.Close())
	}
	s.readHeadroom(ctx)
	s.cachesEnd = time.AfterFunc(recent.For, s.evictCaches)
	return s, nil
}

// Close ends the connections.
func (s *Store) Close() error {
	s.cachesEnd.Stop()
	return s.client.Close()
}

// nowScript returns the time of the clock key's server.
//
// KEYS[1] clock; only its slot matters
// Returns microseconds since the Unix epoch.
var nowScript = redis.NewScript(luaNow + `return now()`)

// luaNow is the store's clock in microseconds, and how a number that big is
// written: Lua's own way would round it.
const luaNow = `
local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local function text(n) return string.format('%.0f', n) end
`

// Now is the time of the server that keeps the clock key.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	c := s.nowCall()
	if err := s.run(ctx, c); err != nil {
		return time.Time{}, fmt.Errorf("ask for the time: %w", err)
	}
	return c.moment()
}

func (s *Store) nowCall() *call {
	return &call{script: nowScript, keys: []string{s.keys.clock()}}
}

func moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return procfleet.Number(us).Time()
}
