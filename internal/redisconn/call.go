package redisconn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/taskstore"
)

// Call is one run of a script. All its keys are in one slot, unless the script is only
// used without a cluster. Scripts are idempotent: running a call twice has the same
// effect as running it once.
type Call struct {
	Script *redis.Script
	Keys   []string
	Args   []any
	Cmd    *redis.Cmd // the reply of the last run; nil before
	ran    bool       // an earlier attempt may have run the script
}

func (c *Call) answered() bool { return c.Cmd != nil && c.Cmd.Err() == nil }

// Send queues the call in a pipeline, or runs it. If the server did not know the script
// in the last attempt, Send includes the text of the script: loadScripts cannot reach
// every server in time, for example a new node of a cluster that receives its first
// slot.
func (c *Call) Send(ctx context.Context, to redis.Scripter) {
	c.ran = c.ran || c.Cmd != nil && !unrun(c.Cmd.Err())
	if c.Cmd != nil && redis.HasErrorPrefix(c.Cmd.Err(), "NOSCRIPT") {
		c.Cmd = c.Script.Eval(ctx, to, c.Keys, c.Args...)
		return
	}
	c.Cmd = c.Script.EvalSha(ctx, to, c.Keys, c.Args...)
}

// MayHaveRun reports whether the script may have run, or may still run, although the
// call failed with err.
func (c *Call) MayHaveRun(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true // also because the pipeliner may still be writing cmd
	}
	return c.ran || c.Cmd != nil && !unrun(c.Cmd.Err())
}

// Number returns the reply of a script that returns an integer.
func (c *Call) Number() (int64, error) { return c.Cmd.Int64() }

// Moment returns the reply of a script that returns microseconds since the Unix epoch.
func (c *Call) Moment() (time.Time, error) {
	us, err := c.Number()
	return Moment(us), err
}

// Run runs the calls in one round trip. The calls must be independent of each other,
// because a cluster runs them on several servers at the same time.
func (c *Conn) Run(ctx context.Context, calls ...*Call) error {
	return c.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
		for _, call := range calls {
			if !call.answered() {
				call.Send(ctx, pipe)
			}
		}
	})
}

// RunDurably runs the calls and returns when [Options.WaitReplicas] replicas have
// confirmed their writes. If the replicas do not confirm a call in time, RunDurably
// runs it again although it succeeded, because the server may meanwhile be a promoted
// replica that lacks the write.
func (c *Conn) RunDurably(ctx context.Context, calls ...*Call) error {
	if c.opt.WaitReplicas == 0 {
		return c.Run(ctx, calls...)
	}
	open := calls
	return c.persist(ctx, func(ctx context.Context) error {
		groups, err := c.byServer(ctx, open)
		if err != nil {
			return err
		}
		open = nil
		var failed error
		for server, group := range groups {
			if err := c.runAndWait(ctx, server, group); err != nil {
				open, failed = append(open, group...), err
			}
		}
		return failed
	})
}

// byServer groups the calls by the server of their slot. The calls and the following
// WAIT must use the same connection: WAIT on another server, for example one that was
// just promoted, would confirm writes which that server never had.
func (c *Conn) byServer(ctx context.Context, calls []*Call) (map[*redis.Client][]*Call, error) {
	if single, ok := c.client.(*redis.Client); ok {
		return map[*redis.Client][]*Call{single: calls}, nil
	}
	cluster, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return nil, fmt.Errorf("redis client of kind %T cannot wait for replicas", c.client)
	}
	groups := make(map[*redis.Client][]*Call)
	for _, call := range calls {
		server, err := cluster.MasterForKey(ctx, call.Keys[0])
		if err != nil {
			return nil, err
		}
		groups[server] = append(groups[server], call)
	}
	return groups, nil
}

func (c *Conn) runAndWait(ctx context.Context, server *redis.Client, calls []*Call) error {
	pipe := server.Pipeline()
	for _, call := range calls {
		call.Send(ctx, pipe)
	}
	pipe.Set(ctx, c.waitKey(calls[len(calls)-1].Keys[0]), "", waitKeyLife)
	wait := redis.NewIntCmd(ctx, "wait", c.opt.WaitReplicas, c.opt.WaitTimeout.Milliseconds())
	if err := pipe.Process(ctx, wait); err != nil {
		return err
	}
	if err := flush(ctx, pipe); err != nil {
		return err
	}
	if have := wait.Val(); have < int64(c.opt.WaitReplicas) {
		return fmt.Errorf("%w: %d of %d replicas confirmed within %v", taskstore.ErrUnavailable, have, c.opt.WaitReplicas, c.opt.WaitTimeout)
	}
	return nil
}

// waitKeyLife is the expiry of the keys written before WAIT.
const waitKeyLife = time.Minute

// Read runs plain commands in one round trip, with retries; it calls add for each
// attempt. A missing key is not an error.
func (c *Conn) Read(ctx context.Context, add AddFunc) error {
	return c.persist(ctx, func(ctx context.Context) error { return c.send(ctx, add) })
}

// send is one attempt of Read.
func (c *Conn) send(ctx context.Context, add AddFunc) error {
	if c.pipeliner != nil {
		return c.pipeliner.send(ctx, add)
	}
	return send(ctx, c.client, add)
}

// persist calls attempt until it succeeds or fails permanently, for at most
// [Options.Patience]. It blocks.
func (c *Conn) persist(ctx context.Context, attempt func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, c.opt.Patience)
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
			if loadErr := c.loadScripts(bounded); loadErr == nil && n == 0 {
				continue
			}
		case faultTransient:
			c.refresh(bounded)
		}
		if !Pause(bounded, n) {
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
func (c *Conn) refresh(ctx context.Context) {
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		cluster.ReloadState(ctx)
	}
}

// Pause waits before the next attempt, longer after each attempt. It returns false if
// ctx ends first.
func Pause(ctx context.Context, attempt int) bool {
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

// ScriptItems and ScriptBytes limit the work of one script call, so that no call blocks
// Redis for long.
const (
	ScriptItems = 500
	ScriptBytes = 1 << 20
)

// competeRounds is the maximum number of attempts of a change that competes with
// concurrent changes. With the pauses in between they take about 20 s.
const competeRounds = 100

// Compete calls attempt again while concurrent callers change the data that it has
// read, until attempt reports done or fails.
func Compete(ctx context.Context, attempt func() (done bool, err error)) error {
	for n := range competeRounds {
		done, err := attempt()
		if done || err != nil {
			return err
		}
		if !Pause(ctx, n) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: concurrent changes won %d times", taskstore.ErrUnavailable, competeRounds)
}

// loadScripts loads every script into every server.
func (c *Conn) loadScripts(ctx context.Context) error {
	load := func(ctx context.Context, server *redis.Client) error {
		for _, script := range c.allScripts() {
			if err := script.Load(ctx, server).Err(); err != nil {
				return err
			}
		}
		return nil
	}
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, load)
	}
	single, ok := c.client.(*redis.Client)
	if !ok {
		return fmt.Errorf("redis client of kind %T is not supported", c.client)
	}
	return load(ctx, single)
}
