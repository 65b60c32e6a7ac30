package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/taskstore"
)

// call is one run of a script. Its keys are all in one slot, and running it
// twice is the same as running it once.
type call struct {
	script *redis.Script
	keys   []string
	args   []any
	cmd    *redis.Cmd // the answer, once it was run
}

func (c *call) answered() bool { return c.cmd != nil && c.cmd.Err() == nil }

// number is the answer of a script that returns one.
func (c *call) number() (int64, error) { return c.cmd.Int64() }

// moment is the answer of a script that returns microseconds.
func (c *call) moment() (time.Time, error) {
	us, err := c.number()
	return moment(us), err
}

// run runs the calls in one round trip. They are independent of each other:
// in a cluster they go to several servers at once.
func (s *Store) run(ctx context.Context, calls ...*call) error {
	return s.persist(ctx, func(ctx context.Context) error {
		if len(calls) == 1 {
			c := calls[0]
			c.cmd = c.script.EvalSha(ctx, s.client, c.keys, c.args...)
			return c.cmd.Err()
		}
		pipe := s.client.Pipeline()
		queue(ctx, pipe, calls)
		return flush(ctx, pipe)
	})
}

// runDurably runs the calls and returns when the replicas that
// [Options.WaitReplicas] asks for have what they did.
func (s *Store) runDurably(ctx context.Context, calls ...*call) error {
	if s.opt.WaitReplicas == 0 {
		return s.run(ctx, calls...)
	}
	return s.persist(ctx, func(ctx context.Context) error {
		groups, err := s.byServer(ctx, calls)
		if err != nil {
			return err
		}
		for server, group := range groups {
			if err := s.runAndWait(ctx, server, group); err != nil {
				return err
			}
		}
		return nil
	})
}

// byServer groups the calls by the server that has their slot. The calls and
// the WAIT behind them must travel on one connection: WAIT on another server,
// such as one that was just promoted, would confirm what it never had.
func (s *Store) byServer(ctx context.Context, calls []*call) (map[*redis.Client][]*call, error) {
	if single, ok := s.client.(*redis.Client); ok {
		return map[*redis.Client][]*call{single: calls}, nil
	}
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return nil, fmt.Errorf("redis client of kind %T cannot wait for replicas", s.client)
	}
	groups := make(map[*redis.Client][]*call)
	for _, c := range calls {
		server, err := cluster.MasterForKey(ctx, c.keys[0])
		if err != nil {
			return nil, err
		}
		groups[server] = append(groups[server], c)
	}
	return groups, nil
}

func (s *Store) runAndWait(ctx context.Context, server *redis.Client, calls []*call) error {
	pipe := server.Pipeline()
	queue(ctx, pipe, calls)
	wait := redis.NewIntCmd(ctx, "wait", s.opt.WaitReplicas, s.opt.WaitTimeout.Milliseconds())
	if err := pipe.Process(ctx, wait); err != nil {
		return err
	}
	if err := flush(ctx, pipe); err != nil {
		return err
	}
	if have := wait.Val(); have < int64(s.opt.WaitReplicas) {
		return fmt.Errorf("%w: %d of %d replicas confirmed within %v", taskstore.ErrUnavailable, have, s.opt.WaitReplicas, s.opt.WaitTimeout)
	}
	return nil
}

// queue adds the calls that have no answer yet.
func queue(ctx context.Context, pipe redis.Pipeliner, calls []*call) {
	for _, c := range calls {
		if !c.answered() {
			c.cmd = c.script.EvalSha(ctx, pipe, c.keys, c.args...)
		}
	}
}

// read runs plain commands in one round trip; add is called again for each
// attempt. A missing key is not an error.
func (s *Store) read(ctx context.Context, add func(ctx context.Context, pipe redis.Pipeliner)) error {
	return s.persist(ctx, func(ctx context.Context) error {
		pipe := s.client.Pipeline()
		add(ctx, pipe)
		return flush(ctx, pipe)
	})
}

// flush sends what a pipeline holds and returns the first error that is one.
func flush(ctx context.Context, pipe redis.Pipeliner) error {
	commands, _ := pipe.Exec(ctx) // its error is that of the first command, a missing key included
	for _, c := range commands {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// persist calls attempt until it succeeds, fails for good, or
// [Options.Patience] is over.
func (s *Store) persist(ctx context.Context, attempt func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, s.opt.Patience)
	defer cancel()
	for n := 0; ; n++ {
		err := attempt(bounded)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch classify(err) {
		case faultForGood:
			return err
		case faultFull:
			return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
		case faultScripts:
			if loadErr := s.loadScripts(bounded); loadErr == nil && n == 0 {
				continue
			}
		case faultPassing:
			s.refresh(bounded, err)
		}
		if !pause(bounded, n) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
		}
	}
}

// refresh makes the client of a cluster look again where the slots are.
func (s *Store) refresh(ctx context.Context, err error) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok && redirected(err) {
		cluster.ReloadState(ctx)
	}
}

// pause waits before the next attempt, longer each time; false means that ctx
// ended first.
func pause(ctx context.Context, attempt int) bool {
	const shortest, longest = 5 * time.Millisecond, 250 * time.Millisecond
	wait := min(shortest<<min(attempt, 10), longest)
	timer := time.NewTimer(wait/2 + rand.N(wait/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// scripts returns all scripts. The one that makes a task comes last: where it
// is loaded all others are, see [Store.loadScripts].
func scripts() []*redis.Script {
	return []*redis.Script{
		nowScript, tickScript, enrolScript, claimScript, stageScript, abandonScript,
		dispatchedScript, rejectScript, beginScript, deliveredScript, recordScript,
		leaseScript, releaseScript, dueScript, undoneScript, republishedScript,
		revisitScript, notifiedScript,
		announceScript, areasScript, liveAreasScript,
		createScript,
	}
}

// loadScripts loads every script into every server.
func (s *Store) loadScripts(ctx context.Context) error {
	load := func(ctx context.Context, server *redis.Client) error {
		for _, script := range scripts() {
			if err := script.Load(ctx, server).Err(); err != nil {
				return err
			}
		}
		return nil
	}
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, load)
	}
	single, ok := s.client.(*redis.Client)
	if !ok {
		return fmt.Errorf("redis client of kind %T is not supported", s.client)
	}
	return load(ctx, single)
}
