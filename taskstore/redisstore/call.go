package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/taskstore"
)

// call is one run of a script. Its keys are all in one slot, unless the script is
// not for a cluster, and running it twice is the same as running it once.
type call struct {
	script *redis.Script
	keys   []string
	args   []any
	cmd    *redis.Cmd // the answer, once it was run
	ran    bool       // an attempt before the last may have run the script
}

// answeringOnce makes a script of a body that returns two values: the answer, and
// whether it changed anything. The script stores the answer to a change for a
// minute, under a key that is the call's own, and answers the repeat with it. A
// call whose answer was lost is repeated, and would report the state after its
// own change as the state before it.
//
// That key follows the keys of the body, as many as keys says. If the call does
// not name it, nothing is stored.
func answeringOnce(keys int, body string) *redis.Script {
	return redis.NewScript(`
local key = KEYS[` + strconv.Itoa(keys+1) + `]
local before = key and redis.call('GET', key)
if before then return before end
local function run()` + body + `end
local answer, changed = run()
if key and changed then redis.call('SET', key, answer, 'PX', 60000) end
return answer
`)
}

func (c *call) answered() bool { return c.cmd != nil && c.cmd.Err() == nil }

// send queues the call, or runs it. A server that did not know the script gets
// its text: loadScripts may not reach it yet, such as a new node of a cluster
// while it gets its first slot.
func (c *call) send(ctx context.Context, to redis.Scripter) {
	c.ran = c.ran || c.cmd != nil && !unrun(c.cmd.Err())
	if c.cmd != nil && redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
		c.cmd = c.script.Eval(ctx, to, c.keys, c.args...)
		return
	}
	c.cmd = c.script.EvalSha(ctx, to, c.keys, c.args...)
}

// mayHaveRun reports whether the script may have run, or may still run, although
// the call failed with err.
func (c *call) mayHaveRun(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true // and a batch may still be writing the reply
	}
	return c.ran || c.cmd != nil && !unrun(c.cmd.Err())
}

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
	return s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for _, c := range calls {
			if !c.answered() {
				c.send(ctx, pipe)
			}
		}
	})
}

// runDurably runs the calls and returns when the replicas that
// [Options.WaitReplicas] demands have their writes. A call that was not
// replicated in time is run again although it succeeded: the server may by now
// be a promoted replica without its write.
func (s *Store) runDurably(ctx context.Context, calls ...*call) error {
	if s.opt.WaitReplicas == 0 {
		return s.run(ctx, calls...)
	}
	open := calls
	return s.persist(ctx, func(ctx context.Context) error {
		groups, err := s.byServer(ctx, open)
		if err != nil {
			return err
		}
		open = nil
		var failed error
		for server, group := range groups {
			if err := s.runAndWait(ctx, server, group); err != nil {
				open, failed = append(open, group...), err
			}
		}
		return failed
	})
}

// byServer groups the calls by the server that has their slot. The calls and
// the WAIT behind them must travel on one connection: WAIT on another server,
// such as one that was just promoted, would confirm writes it never had.
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
	for _, c := range calls {
		c.send(ctx, pipe)
	}
	pipe.Set(ctx, s.keys.wait(calls[len(calls)-1].keys[0]), "", waitKeyLife)
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

// waitKeyLife is only to keep the keys from gathering.
const waitKeyLife = time.Minute

// read runs plain commands in one round trip; add is called again for each
// attempt. A missing key is not an error.
func (s *Store) read(ctx context.Context, add addFunc) error {
	return s.persist(ctx, func(ctx context.Context) error { return s.send(ctx, add) })
}

// send is one attempt of read.
func (s *Store) send(ctx context.Context, add addFunc) error {
	if s.pipeliner != nil {
		return s.pipeliner.send(ctx, add)
	}
	return send(ctx, s.client, add)
}

// persist calls attempt until it succeeds or fails permanently, for at most
// [Options.Patience].
func (s *Store) persist(ctx context.Context, attempt func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, s.opt.Patience)
	defer cancel()
	var last error // of the previous attempt, which ctx did not cut short
	for n := 0; ; n++ {
		err := attempt(bounded)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ended(ctx, last)
		}
		switch classify(err) {
		case faultPermanent:
			return err
		case faultRefused:
			return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
		case faultScripts:
			if loadErr := s.loadScripts(bounded); loadErr == nil && n == 0 {
				continue
			}
		case faultTransient:
			s.refresh(bounded)
		}
		if !pause(bounded, n) {
			if ctx.Err() != nil {
				return ended(ctx, err)
			}
			return fmt.Errorf("%w: %w", taskstore.ErrUnavailable, err)
		}
		last = err
	}
}

// ended is the error of a context that ended, with the last error of an attempt.
func ended(ctx context.Context, last error) error {
	if last == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w (%w)", last, ctx.Err())
}

// refresh makes the client of a cluster read the slots again. By itself it does
// so every ten seconds and when it is redirected, but a dead server redirects
// no call.
func (s *Store) refresh(ctx context.Context) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
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

// competeRounds is how often a change is tried that loses against others; with
// the pauses in between that takes about twenty seconds.
const competeRounds = 100

// compete calls attempt again while other callers change what it has read
// before it writes.
func compete(ctx context.Context, attempt func() (done bool, err error)) error {
	for n := range competeRounds {
		done, err := attempt()
		if done || err != nil {
			return err
		}
		if !pause(ctx, n) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: concurrent changes won %d times", taskstore.ErrUnavailable, competeRounds)
}

// scripts returns all scripts. The one that makes a task comes last: where it
// is loaded all others are, see [Store.loadScripts].
func scripts() []*redis.Script {
	return []*redis.Script{
		nowScript, tickScript, enrolScript, claimScript, stageScript, abandonScript,
		dispatchedScript, rejectScript, beginScript, deliveredScript, recordScript,
		leaseScript, releaseScript, dueScript, undoneScript, republishedScript,
		revisitScript, notifiedScript, moveToNotifiedScript, forgetNotifiedScript,
		announceScript, areasScript, liveAreasScript, boundAreasScript, bindScript,
		registerScript, unregisterScript, lookupScript, registeredHostsScript,
		touchScript, settleScript, reportScript, pageScript, groupsScript,
		freezeScript, liftScript, freezePageScript, freezesOfScript,
		templateIDsScript, templatesScript, changeTemplatesScript, changesScript,
		setTopologyScript, topologyScript,
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
