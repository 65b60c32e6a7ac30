package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
)

var _ taskstore.Store = (*Store)(nil)

// Options holds the optional settings of a store.
type Options struct {
	// ForgetHosts removes what other stores have of hosts whose agents announced nothing
	// for [taskstore.InstanceMemory]. If it fails, the hosts remain, and a later
	// announcement repeats the call. nil removes nothing.
	ForgetHosts func(context.Context, []procfleet.Host) error
}

// Store is a task store in Redis. Create it with [New] or [Open]. It is safe for
// concurrent use.
type Store struct {
	conn *redisconn.Conn
	keys keyspace
	opt  Options
	// highest is the highest number that this store has received. The store sends it
	// with every request for a number, so that numbers do not repeat after a fail-over
	// that lost the last value of the clock key.
	highest redisconn.Highest

	headroom headroom
	servers  servers
}

// New returns the task store on a connection and loads its scripts. [Store.Close] closes
// the connection.
func New(ctx context.Context, conn *redisconn.Conn, opt Options) (*Store, error) {
	s := &Store{conn: conn, keys: keyspace{prefix: conn.Prefix()}, opt: opt}
	if err := conn.Load(ctx, scripts()...); err != nil {
		return nil, err
	}
	s.readHeadroom(ctx)
	return s, nil
}

// Open opens a connection with [redisconn.Open] and returns the task store on it, without
// a catalog. It is for tests and measurements: hosts that it forgets keep their reports.
func Open(ctx context.Context, opt redisconn.Options) (*Store, error) {
	conn, err := redisconn.Open(ctx, opt)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, conn, Options{})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// scripts returns all scripts. The script that creates a task is last: a server that
// has it has all others.
func scripts() []*redis.Script {
	return []*redis.Script{
		tickScript, enrolScript, claimScript, stageScript, abandonScript,
		dispatchedScript, rejectScript, beginScript, deliveredScript, awayScript, recordScript, pauseScript, resumeScript,
		leaseScript, releaseScript, dueScript, undoneScript, republishedScript,
		revisitScript, notifiedScript, moveToNotifiedScript, forgetNotifiedScript,
		announceScript, areasScript, liveAreasScript, boundAreasScript, bindScript,
		createScript,
	}
}

// Close closes the connection.
func (s *Store) Close() error { return s.conn.Close() }

// Now returns the time of the server that stores the clock key.
func (s *Store) Now(ctx context.Context) (time.Time, error) { return s.conn.Now(ctx) }
