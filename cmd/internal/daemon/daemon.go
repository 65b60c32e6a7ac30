// Package daemon runs a role as a process: it checks all settings before the role
// starts, serves health and metrics over HTTP, and notifies systemd.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/plaintext"
	"github.com/procfleet/procfleet/internal/telemetry/logging"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
)

// Flags are the process flags common to all roles.
type Flags struct {
	Logs
	statusHTTP string
	statusTLS  tlsflags.Server
	pprof      bool
}

// Logs holds the flags of the log.
type Logs struct{ Level, Format string }

// Register adds the flags --log-level and --log-format.
func (l *Logs) Register(flags *pflag.FlagSet) {
	flags.StringVar(&l.Level, "log-level", "info", "log level: error, warn, info or debug")
	flags.StringVar(&l.Format, "log-format", "", "log format: json or text (default: text on a terminal)")
}

// Check reports invalid flags to s.
func (l *Logs) Check(s *settings.Settings) {
	s.Refused(l.config(io.Discard).Validate(), map[string]string{"Level": "log-level", "Format": "log-format"})
}

// Logger returns the process's logger, which writes to out.
func (l *Logs) Logger(out io.Writer) (*logrus.Logger, error) {
	cfg := l.config(plaintext.Under(out)) // escaping is done by the formatter, which may write colors
	if wrong, _ := invalid.Fields(cfg.Validate()); len(wrong) > 0 {
		return nil, fmt.Errorf("--log-%s: %w", strings.ToLower(wrong[0].Name), wrong[0].Problem)
	}
	return logging.New(cfg)
}

func (l *Logs) config(out io.Writer) logging.Config {
	format := l.Format
	if format == "" {
		format = logging.FormatFor(out)
	}
	return logging.Config{Level: l.Level, Format: format, Out: out}
}

// Role is the role that a command runs.
type Role struct {
	// Version is logged once the role is ready.
	Version string
	// Check reports invalid settings. It must have no side effects: it creates no
	// file, binds no port, and opens no connection.
	Check func(*settings.Settings)
	// Run runs the role until ctx ends.
	Run func(context.Context, *Process) error
}

// Process provides a running role with its log, metrics and health check.
type Process struct {
	Log     *logrus.Logger
	Metrics *metrics.Registry

	ready   atomic.Pointer[func(context.Context) error]
	unready oncePerMinute
	end     context.CancelCauseFunc
}

// Fail stops the role gracefully; then the process exits with err. It is for errors
// that only a restart of the process can clear.
func (p *Process) Fail(err error) { p.end(&failure{err}) }

// failure wraps an error passed to [Process.Fail].
type failure struct{ error }

// ReadyWhen sets the check for [Process.Ready]. ready must return before its ctx ends,
// with an error that names the missing parts. Only the error text before a wrapped
// cause is public: the cause may contain addresses and file names.
func (p *Process) ReadyWhen(ready func(context.Context) error) { p.ready.Store(&ready) }

// WaitFor marks the role as not ready because it waits for server; why is the cause,
// or nil.
func (p *Process) WaitFor(server string, why error) {
	waiting := fmt.Errorf("starting: waiting for %s", server)
	if why != nil {
		waiting = fmt.Errorf("starting: waiting for %s: %w", server, why)
	}
	p.ReadyWhen(func(context.Context) error { return waiting })
}

// The timeouts increase from the parts of a role to /readyz to the command
// healthcheck, so that the client receives the name of the missing part instead of a
// timeout.
const (
	partsTimeout = 3 * time.Second
	readyTimeout = 4 * time.Second
)

// Ready returns nil if the role is ready, otherwise an error that names the missing
// parts. It logs their causes. It returns within 4 s, or when ctx ends.
func (p *Process) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case err := <-p.check(ctx):
		shown := withoutCauses(err)
		if err != nil && shown.Error() != err.Error() && p.unready.due(time.Now()) {
			p.Log.WithError(err).Warn("role not ready")
		}
		return shown
	case <-ctx.Done():
		return errors.New("the role does not respond")
	}
}

// withoutCauses returns an error with the text of err, but without the text of the
// errors that err wraps.
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
	text, found := strings.CutSuffix(err.Error(), ": "+cause.Error())
	if !found {
		text = "not ready"
	}
	return errors.New(text + " (the log says why)")
}

// oncePerMinute limits the rate of a repeated log message.
type oncePerMinute struct{ last atomic.Int64 }

// due reports whether the message may be logged now.
func (o *oncePerMinute) due(now time.Time) bool {
	last := o.last.Load()
	return now.UnixNano()-last >= int64(time.Minute) && o.last.CompareAndSwap(last, now.UnixNano())
}

// check runs the check of [Process.ReadyWhen]. A deadlocked role never sends a
// result.
func (p *Process) check(ctx context.Context) <-chan error {
	result := make(chan error, 1)
	ready := p.ready.Load()
	if ready == nil {
		result <- errors.New("starting")
		return result
	}
	go func() {
		ctx, cancel := context.WithTimeout(ctx, partsTimeout)
		defer cancel()
		result <- (*ready)(ctx)
	}()
	return result
}

// logReady waits until the role is ready, and logs that once; end stops the wait.
func (p *Process) logReady(ctx context.Context, version string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var logging sync.WaitGroup
	logging.Go(func() {
		for p.Ready(ctx) != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pollStarting):
			}
		}
		if ctx.Err() == nil {
			p.Log.WithField("version", version).Info("ready")
		}
	})
	return func() { cancel(); logging.Wait() }
}

// Command adds the process flags and the run function to the command of a role.
func Command(cmd *cobra.Command, f *Flags, role Role) *cobra.Command {
	f.register(cmd.Flags())
	check := cmd.Flags().Bool(settings.CheckFlag, false, "validate the settings, list those that are not the default, and exit")
	helpAll := cmd.Flags().Bool(settings.HelpAllFlag, false, "help with all flags")
	// Replaces the parent's function, which would load the settings without role.Check.
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
		s.Check("status-http", CheckAddress(f.statusHTTP))
	}
	f.statusTLS.Check(s)
	if f.statusHTTP == "" && !f.statusTLS.None() {
		s.Wrong("status-http", "is required with --status-http-cert, for example 127.0.0.1:9090")
	}
	switch {
	case !f.pprof:
	case f.statusHTTP == "":
		s.Wrong("pprof", "profiles require --status-http, for example 127.0.0.1:9090")
	case !OnLoopback(f.statusHTTP):
		s.Wrong("pprof", "profiles show memory contents, and --status-http %s is not on loopback: listen on 127.0.0.1 or omit --pprof", f.statusHTTP)
	}
}

// Apart reports an error if --status-http equals the address of another flag.
func (f *Flags) Apart(s *settings.Settings, flag, address string) {
	if f.statusHTTP != "" && sameAddress(f.statusHTTP, address) {
		s.Wrong("status-http", "%s is in use by --%s %s: choose another port", f.statusHTTP, flag, address)
	}
}

// run runs the role. The status listener serves from before the role's start until
// after its end.
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
	defer supervisor.keepNotified(ctx, p)()
	defer p.logReady(ctx, role.Version)()
	err = role.Run(ctx, p)
	if failed, ok := errors.AsType[*failure](context.Cause(ctx)); ok {
		return failed.error // err is at most a consequence of the failure
	}
	return err
}
