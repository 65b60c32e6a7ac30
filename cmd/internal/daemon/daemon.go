// Package daemon is what every role is as a process, whatever it does: its
// settings are checked as a whole before anything begins, it shows whether it
// works over HTTP, and it tells systemd.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
)

// Flags are what every role can be told about its process.
type Flags struct {
	Logs
	statusHTTP string
	statusTLS  tlsflags.Server
	pprof      bool
}

// Role is what a command runs.
type Role struct {
	// Version is logged when the role is ready.
	Version string
	// Check says what is wrong with the settings. It touches nothing: no file
	// is made, no port bound, no connection opened.
	Check func(*settings.Settings)
	// Run works until ctx ends.
	Run func(context.Context, *Process) error
}

// Process is what a running role has of its process.
type Process struct {
	Log     *logrus.Logger
	Metrics *metrics.Registry

	ready   atomic.Pointer[func(context.Context) error]
	unready oncePerMinute
	end     context.CancelCauseFunc
}

// Fail ends the role in good order; its process then ends with err. For what
// nothing but a new process mends.
func (p *Process) Fail(err error) { p.end(&failure{err}) }

// failure tells the end that [Process.Fail] brought about from others.
type failure struct{ error }

// ReadyWhen says what [Process.Ready] asks from now on. ready answers within
// the time that ctx gives it and says what is missing. Of an error that wraps
// its cause only the text before the cause is for everybody: the cause may name
// addresses and files.
func (p *Process) ReadyWhen(ready func(context.Context) error) { p.ready.Store(&ready) }

// WaitFor says that the role begins its work when a server answers, and why
// that did not yet; why may be nil.
func (p *Process) WaitFor(server string, why error) {
	waiting := fmt.Errorf("starting: waiting for %s", server)
	if why != nil {
		waiting = fmt.Errorf("starting: waiting for %s: %w", server, why)
	}
	p.ReadyWhen(func(context.Context) error { return waiting })
}

// A role's parts have less time to say what is missing than whoever asks waits
// for it, and the command healthcheck waits longer than that: so it is told
// what is missing, not that there was no answer.
const (
	partsTimeout = 3 * time.Second
	readyTimeout = 4 * time.Second
)

// Ready returns nil if the role does its work, else what is missing, without
// causes, which it logs. It returns within 4 s, or when ctx ends.
func (p *Process) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case err := <-p.ask(ctx):
		shown := withoutCauses(err)
		if err != nil && shown.Error() != err.Error() && p.unready.due(time.Now()) {
			p.Log.WithError(err).Warn("role not ready")
		}
		return shown
	case <-ctx.Done():
		return errors.New("the role does not answer")
	}
}

// withoutCauses returns what an error itself says, without the errors that it
// wraps.
func withoutCauses(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var shown []error
		for _, one := range many.Unwrap() {
			shown = append(shown, withoutCauses(one))
		}
		return errors.Join(shown...)
	}
	cause := errors.Unwrap(err)
	if cause == nil {
		return err
	}
	said, found := strings.CutSuffix(err.Error(), ": "+cause.Error())
	if !found {
		said = "not ready"
	}
	return errors.New(said + " (the log says why)")
}

// oncePerMinute keeps a message that repeats itself from filling the log.
type oncePerMinute struct{ last atomic.Int64 }

// due reports whether the message may be written now.
func (o *oncePerMinute) due(now time.Time) bool {
	last := o.last.Load()
	return now.UnixNano()-last >= int64(time.Minute) && o.last.CompareAndSwap(last, now.UnixNano())
}

// ask has the role say whether it works. The answer comes when it comes: a
// role whose parts wait for each other for ever gives none.
func (p *Process) ask(ctx context.Context) <-chan error {
	answer := make(chan error, 1)
	ready := p.ready.Load()
	if ready == nil {
		answer <- errors.New("starting")
		return answer
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, partsTimeout)
		defer cancel()
		answer <- (*ready)(ctx)
	}()
	return answer
}

// tellReady logs once that the role does its work. What it returns ends that.
func (p *Process) tellReady(ctx context.Context, version string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var told sync.WaitGroup
	told.Go(func() {
		for p.Ready(ctx) != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(askStarting):
			}
		}
		if ctx.Err() == nil {
			p.Log.WithField("version", version).Info("ready")
		}
	})
	return func() { cancel(); told.Wait() }
}

// Command makes cmd a role's command. The flags of the role itself are there
// already.
func Command(cmd *cobra.Command, f *Flags, role Role) *cobra.Command {
	f.register(cmd.Flags())
	check := cmd.Flags().Bool(settings.CheckFlag, false, "validate the settings, list those that are not the default, and exit")
	helpAll := cmd.Flags().Bool(settings.HelpAllFlag, false, "help with all flags")
	// In place of the parent's, which knows the settings but not the role's
	// opinion of them.
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return nil }
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *helpAll {
			return cmd.Help()
		}
		s := settings.Load(cmd)
		if !s.Unread() {
			f.check(s)
			role.Check(s)
		}
		if err := s.Err(); err != nil {
			return err
		}
		if *check {
			s.Warn(cmd.ErrOrStderr())
			return s.Report(cmd.OutOrStdout())
		}
		log, err := f.Logger(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		for _, text := range s.Misnamed() {
			log.Warn(text)
		}
		return f.run(cmd.Context(), log, role)
	}
	return cmd
}

func (f *Flags) register(flags *pflag.FlagSet) {
	f.Register(flags)
	flags.StringVar(&f.statusHTTP, "status-http", "", "listen address of /healthz, /readyz and /metrics (default: none)")
	f.statusTLS.Register(flags, "status-http")
	flags.BoolVar(&f.pprof, "pprof", false, "profiles at /debug/pprof/ of --status-http; loopback only")
}

func (f *Flags) check(s *settings.Settings) {
	f.Check(s)
	if f.statusHTTP != "" {
		if err := CheckAddress(f.statusHTTP); err != nil {
			s.Wrong("status-http", "%s", err)
		}
	}
	f.statusTLS.Check(s)
	if f.statusHTTP == "" && !f.statusTLS.None() {
		s.Wrong("status-http", "is missing beside its certificate, for example 127.0.0.1:9090")
	}
	switch {
	case !f.pprof:
	case f.statusHTTP == "":
		s.Wrong("pprof", "profiles are served on --status-http, which is not given; add for example --status-http 127.0.0.1:9090")
	case !OnLoopback(f.statusHTTP):
		s.Wrong("pprof", "profiles show what is in memory, and --status-http %s can be reached from elsewhere; listen on 127.0.0.1 or leave out --pprof", f.statusHTTP)
	}
}

// Apart refuses a --status-http that is where the role itself listens, which
// the given flag says.
func (f *Flags) Apart(s *settings.Settings, flag, address string) {
	if f.statusHTTP != "" && sameAddress(f.statusHTTP, address) {
		s.Wrong("status-http", "%s is taken by --%s %s: choose another port", f.statusHTTP, flag, address)
	}
}

// run gives the role its process: the status listener is there from the first
// moment to the last.
func (f *Flags) run(ctx context.Context, log *logrus.Logger, role Role) error {
	registry, err := metrics.New()
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p := &Process{Log: log, Metrics: registry, end: end}
	if f.statusHTTP != "" {
		stop, err := f.serve(ctx, p.handler(f.pprof), log)
		if err != nil {
			return err
		}
		defer stop()
	}
	supervisor, err := fromEnvironment()
	if err != nil {
		log.WithError(err).Warn("sd_notify failed")
	}
	defer supervisor.keepTold(ctx, p)()
	defer p.tellReady(ctx, role.Version)()
	err = role.Run(ctx, p)
	if failed, ok := errors.AsType[*failure](context.Cause(ctx)); ok {
		return failed.error // of which the other is a consequence, if there is one
	}
	return err
}
