// Package lifecycle runs the parts of a program together: when one ends, all are
// stopped in the reverse of the order in which they were added.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

// Group is a set of named parts. Add them in the order in which they depend
// on each other; the last added is stopped first. The zero Group is not
// usable; see [NewGroup].
type Group struct {
	log         logrus.FieldLogger
	stopTimeout time.Duration
	actors      []*actor
}

type actor struct {
	name   string
	run    func(context.Context) error
	cancel context.CancelFunc
	done   chan struct{} // closed after err is set
	err    error
}

// NewGroup returns an empty group whose parts have stopTimeout, together, to
// end once the group stops.
func NewGroup(log logrus.FieldLogger, stopTimeout time.Duration) *Group {
	return &Group{log: log.WithField("component", "lifecycle"), stopTimeout: stopTimeout}
}

// Add adds a part. Its run blocks until ctx ends and then returns nil, or
// returns the error that makes going on pointless.
func (g *Group) Add(name string, run func(ctx context.Context) error) {
	g.actors = append(g.actors, &actor{name: name, run: run, done: make(chan struct{})})
}

// Run starts every part and blocks until all have ended. They end when ctx
// does, or when one of them ends by itself. It returns nil if ctx ended and
// every part ended well and in time. Parts that do not end in time are named
// in the error and left behind.
func (g *Group) Run(ctx context.Context) error {
	first := make(chan *actor, len(g.actors))
	for _, a := range g.actors {
		// Parts outlive ctx: each is stopped in order.
		actorCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		a.cancel = cancel
		go func() {
			a.err = a.run(actorCtx)
			close(a.done)
			first <- a
		}()
	}
	var cause error
	select {
	case <-ctx.Done():
		g.log.Info("stopping")
	case a := <-first:
		cause = endedEarly(a)
		g.log.WithField("part", a.name).WithError(cause).Error("component ended, stopping the others")
	}
	return errors.Join(cause, g.stop(cause))
}

func endedEarly(a *actor) error {
	if a.err == nil {
		return fmt.Errorf("%s ended by itself", a.name)
	}
	return fmt.Errorf("%s: %w", a.name, a.err)
}

// stop stops the parts in reverse order and returns the errors of the parts that
// did not cause the stop.
func (g *Group) stop(cause error) error {
	timeout := time.NewTimer(g.stopTimeout)
	defer timeout.Stop()
	var errs []error
	var stuck []string
	for _, a := range slices.Backward(g.actors) {
		a.cancel()
		if len(stuck) > 0 { // the time is over: only check which have ended
			if !ended(a) {
				stuck = append(stuck, a.name)
			}
			continue
		}
		select {
		case <-a.done:
			if a.err != nil && !errors.Is(cause, a.err) {
				errs = append(errs, fmt.Errorf("%s: %w", a.name, a.err))
			}
		case <-timeout.C:
			stuck = append(stuck, a.name)
		}
	}
	if len(stuck) > 0 {
		errs = append(errs, fmt.Errorf("not stopped within %v: %s", g.stopTimeout, strings.Join(stuck, ", ")))
	}
	return errors.Join(errs...)
}

func ended(a *actor) bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// WithSignals returns a context that ends with the first SIGINT or SIGTERM;
// its cause names the signal. A second signal calls exit, to skip the orderly
// shutdown. Call stop to stop handling signals; it waits until no signal is being
// handled.
func WithSignals(parent context.Context, exit func()) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			cancel(fmt.Errorf("received %v", s))
		case <-quit:
			return
		}
		select {
		case <-signals:
			exit()
		case <-quit:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel(nil)
	}
}
