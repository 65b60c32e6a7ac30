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

// Options configures a store.
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
	// Log receives the log lines of the store. Required.
	Log logrus.FieldLogger
}

// Store is a task store and a catalog in Redis. Create it with [Open]. It is safe for
// concurrent use.
type Store struct {
	client    redis.UniversalClient
	pipeliner *pipeliner // nil in a cluster, because its servers reply independently of each other
	keys      keyspace
	opt       Options
	log       logrus.FieldLogger
	// highest is the highest number that this store has received. The store sends it
	// with every request for a number, so that numbers do not repeat after a fail-over
	// that lost the last value of the clock key.
	highest   atomic.Int64
	highestID atomic.Int64 // the same for template ids

	headroom headroom
	servers  servers

	caches    *recent.Businesses[businessCache]
	cachesEnd *time.Timer // evicts unused caches while no business is used
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

// Open connects to Redis and runs [Store.Check]. It blocks until the check ends or ctx
// ends. It returns [taskstore.ErrUnavailable] if Redis did not reply within
// [Options.Patience].
//
// go-redis has one logger per process. Open replaces it by opt.Log, at debug level; if
// several stores are opened, the last one counts.
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

// Close closes the connections.
func (s *Store) Close() error {
	s.cachesEnd.Stop()
	return s.client.Close()
}

// nowScript returns the time of the server that stores the clock key.
//
// KEYS[1] clock; only determines the server
// Returns microseconds since the Unix epoch.
var nowScript = redis.NewScript(luaNow + `return now()`)

// luaNow defines now, the store's clock in microseconds, and text, which formats such a
// large number without rounding it as Lua would.
const luaNow = `
local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local function text(n) return string.format('%.0f', n) end
`

// Now returns the time of the server that stores the clock key.
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
