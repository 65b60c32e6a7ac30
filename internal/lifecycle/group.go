// Package lifecycle runs the parts of a program together: when one part ends, all
// are stopped in the reverse of the order in which they were added.
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

// Group is a set of named parts. Add a part after the parts on which it depends;
// the last added is stopped first. The zero Group is not usable; see [NewGroup].
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

// NewGroup returns an empty group. After a stop, all parts together have
// stopTimeout to end.
func NewGroup(log logrus.FieldLogger, stopTimeout time.Duration) *Group {
	return &Group{log: log.WithField("component", "lifecycle"), stopTimeout: stopTimeout}
}

// Add adds a part. run must block until ctx ends and then return nil, or return an
// error if the program cannot continue.
func (g *Group) Add(name string, run func(ctx context.Context) error) {
	g.actors = append(g.actors, &actor{name: name, run: run, done: make(chan struct{})})
}

// Run starts every part and blocks until all have ended. It stops them when ctx
// ends, or when one of them ends by itself. It returns nil if ctx ended and every
// part ended without error within stopTimeout. The error names parts that did not
// end in time; they continue to run.
func (g *Group) Run(ctx context.Context) error {
	first := make(chan *actor, len(g.actors))
	for _, a := range g.actors {
		// Each part has its own context, so that the parts are stopped in order.
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

// stop stops the parts in reverse order and returns the errors of parts other than
// the cause.
func (g *Group) stop(cause error) error {
	timeout, cancel := context.WithTimeout(context.Background(), g.stopTimeout)
	defer cancel()
	var errs []error
	var stuck []string
	for _, a := range slices.Backward(g.actors) {
		a.cancel()
		select {
		case <-a.done:
		case <-timeout.Done():
		}
		select {
		case <-a.done:
			if a.err != nil && !errors.Is(cause, a.err) {
				errs = append(errs, fmt.Errorf("%s: %w", a.name, a.err))
			}
		default:
			stuck = append(stuck, a.name)
		}
	}
	if len(stuck) > 0 {
		errs = append(errs, fmt.Errorf("not stopped within %v: %s", g.stopTimeout, strings.Join(stuck, ", ")))
	}
	return errors.Join(errs...)
}

// WithSignals returns a context that ends at the first SIGINT or SIGTERM; its
// cause names the signal. A second signal calls exit, to skip the orderly
// shutdown. stop ends the handling of signals, and waits for a handler in
// progress.
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
