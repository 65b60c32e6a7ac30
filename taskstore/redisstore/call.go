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

// call is one run of a script. All its keys are in one slot, unless the script is only
// used without a cluster. Scripts are idempotent: running a call twice has the same
// effect as running it once.
type call struct {
	script *redis.Script
	keys   []string
	args   []any
	cmd    *redis.Cmd // the reply of the last run; nil before
	ran    bool       // an earlier attempt may have run the script
}

// answeringOnce returns a script from a body that returns two values: the reply, and
// whether it changed anything. The script stores the reply to a change for one minute
// under a key that is unique to the call. If the reply is lost and the call is
// repeated, the script returns the stored reply. Without it, the repeated call would
// report the state after its own change as the state before it.
//
// The body has the given number of keys, and the key of the stored reply follows them.
// If a call omits that key, the script stores no reply.
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

// send queues the call in a pipeline, or runs it. If the server did not know the script
// in the last attempt, send includes the text of the script: loadScripts cannot reach
// every server in time, for example a new node of a cluster that receives its first
// slot.
func (c *call) send(ctx context.Context, to redis.Scripter) {
	c.ran = c.ran || c.cmd != nil && !unrun(c.cmd.Err())
	if c.cmd != nil && redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
		c.cmd = c.script.Eval(ctx, to, c.keys, c.args...)
		return
	}
	c.cmd = c.script.EvalSha(ctx, to, c.keys, c.args...)
}

// mayHaveRun reports whether the script may have run, or may still run, although the
// call failed with err.
func (c *call) mayHaveRun(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true // also because the pipeliner may still be writing cmd
	}
	return c.ran || c.cmd != nil && !unrun(c.cmd.Err())
}

// number returns the reply of a script that returns an integer.
func (c *call) number() (int64, error) { return c.cmd.Int64() }

// moment returns the reply of a script that returns microseconds since the Unix epoch.
func (c *call) moment() (time.Time, error) {
	us, err := c.number()
	return moment(us), err
}

// run runs the calls in one round trip. The calls must be independent of each other,
// because a cluster runs them on several servers at the same time.
func (s *Store) run(ctx context.Context, calls ...*call) error {
	return s.read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for _, c := range calls {
			if !c.answered() {
				c.send(ctx, pipe)
			}
		}
	})
}

// runDurably runs the calls and returns when [Options.WaitReplicas] replicas have
// confirmed their writes. If the replicas do not confirm a call in time, runDurably
// runs it again although it succeeded, because the server may meanwhile be a promoted
// replica that lacks the write.
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

// byServer groups the calls by the server of their slot. The calls and the following
// WAIT must use the same connection: WAIT on another server, for example one that was
// just promoted, would confirm writes which that server never had.
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

// waitKeyLife is the expiry of the keys written before WAIT.
const waitKeyLife = time.Minute

// read runs plain commands in one round trip, with retries; it calls add for each
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
// [Options.Patience]. It blocks.
func (s *Store) persist(ctx context.Context, attempt func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, s.opt.Patience)
	defer cancel()
	var last error // error of the last attempt that ctx did not interrupt
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

// ended returns the error for a context that ended, with the error of the last attempt.
func ended(ctx context.Context, last error) error {
	if last == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w (%w)", last, ctx.Err())
}

// refresh makes the cluster client read the assignment of slots again. By itself the
// client does that only every ten seconds and when a server redirects it, and a dead
// server redirects nothing.
func (s *Store) refresh(ctx context.Context) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		cluster.ReloadState(ctx)
	}
}

// pause waits before the next attempt, longer after each attempt. It returns false if
// ctx ends first.
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

// competeRounds is the maximum number of attempts of a change that competes with
// concurrent changes. With the pauses in between they take about 20 s.
const competeRounds = 100

// compete calls attempt again while concurrent callers change the data that it has
// read, until attempt reports done or fails.
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

// scripts returns all scripts. The script that creates a task is last: a server that
// has it has all others, see [Store.loadScripts].
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
