package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/telemetry"
)

// roleFlags are the flags common to dispatcher, worker and up.
type roleFlags struct {
	daemon.Flags
	backendFlags
	audits auditFlags
	traces traceFlags
	drain  time.Duration
}

// register adds all flags except --nats and --redis, whose help texts differ between
// commands. drained is the work for which a shutdown waits.
func (f *roleFlags) register(flags *pflag.FlagSet, drain time.Duration, drained string) {
	f.backendFlags.register(flags)
	f.audits.register(flags)
	f.traces.register(flags)
	flags.DurationVar(&f.drain, "drain", drain, "grace period for "+drained+" on shutdown")
}

func (f *roleFlags) check(s *settings.Settings) {
	f.backendFlags.check(s)
	f.audits.check(s)
	f.traces.check(s)
	s.AtLeast(1, "drain")
}

// command completes the command of a role. Stopping a role that waits for servers is no
// failure.
func (f *roleFlags) command(cmd *cobra.Command, check func(*settings.Settings), run func(context.Context, *daemon.Process) error) *cobra.Command {
	return daemon.Command(cmd, &f.Flags, daemon.Role{
		Version: command.Version(), Check: check,
		Run: func(ctx context.Context, p *daemon.Process) error { return unlessStopped(ctx, run(ctx, p)) },
	})
}

// refuseUnsigned reports an error for a role without fleet keys on a non-loopback NATS.
func (f *backendFlags) refuseUnsigned(s *settings.Settings, allow bool) {
	if f.fleetKey == "" {
		s.Check("fleet-key", natsconn.RefuseUnsigned(f.nats, "fleet-key", allow))
	}
}

func checkNATSCreds(s *settings.Settings, file string) {
	if file == "" {
		return
	}
	text, err := natsauth.ReadCredentials(file)
	if err != nil {
		s.Wrong("nats-creds", "%s", err)
		return
	}
	switch _, until, err := natsauth.ParseCredentials(text); {
	case err != nil:
		s.Wrong("nats-creds", "%s: %s", file, err)
	case !until.IsZero() && time.Now().After(until):
		s.Wrong("nats-creds", "%s expired at %s: create another with procfleet nats-auth user", file, until.UTC().Format(time.RFC3339))
	}
}

// receiverFlags are the flags for the receivers of callbacks or of webhooks.
type receiverFlags struct {
	of, role string // such as "callback" and "workers"
	tls      tlsflags.Client
	allow    string
}

// register adds the flags --<of>-allow, --<of>-ca and so on, for requests that a role sends.
func (f *receiverFlags) register(flags *pflag.FlagSet, of, role string) {
	f.of, f.role = of, role
	f.tls.RegisterForMany(flags, f.of, f.of+" receivers")
	flags.StringVar(&f.allow, f.of+"-allow", "", "local networks, addresses or hosts permitted for "+f.of+"s, comma-separated")
}

func (f *receiverFlags) check(s *settings.Settings) {
	f.tls.Check(s)
	_, err := f.parse()
	s.Check(f.of+"-allow", err)
}

// policy returns the permitted receivers; check reports invalid flags.
func (f *receiverFlags) policy() destination.Policy {
	policy, _ := f.parse()
	return policy
}

func (f *receiverFlags) parse() (destination.Policy, error) {
	entries := strings.FieldsFunc(f.allow, func(r rune) bool { return r == ',' || r == ' ' })
	return destination.Parse(f.role+" with --"+f.of+"-allow", entries)
}

// auditFlags select the sinks of the audit log.
type auditFlags struct {
	file             string
	stream, required bool
}

func (f *auditFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "audit-log", "", "additional audit log file, one JSON record per line")
	flags.BoolVar(&f.stream, "audit-stream", true, "audit log in the JetStream stream PROCFLEET_AUDIT")
	flags.BoolVar(&f.required, "audit-required", false, "status 503 for requests while no audit record can be written")
}

func (f *auditFlags) check(s *settings.Settings) {
	if f.required && f.file == "" && !f.stream {
		s.Wrong("audit-required", "requires --audit-log or --audit-stream")
	}
}

// open starts the audit log. The caller must close it after the roles and before the
// bus.
func (f *auditFlags) open(b *bus.Bus, p *daemon.Process) (*audit.Log, error) {
	cfg := audit.Config{Required: f.required, Log: p.Log, Meter: p.Metrics.Meter("audit")}
	if f.file != "" {
		file, err := audit.OpenFile(f.file)
		if err != nil {
			return nil, fmt.Errorf("--audit-log: %w", err)
		}
		cfg.Sinks = append(cfg.Sinks, file)
	}
	if f.stream {
		cfg.Sinks = append(cfg.Sinks, b.AuditSink())
	}
	return audit.New(cfg)
}

type traceFlags struct {
	url   string
	tls   tlsflags.Client
	ratio float64
}

func (f *traceFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "otlp", "", "URL of an OpenTelemetry collector, OTLP over HTTP (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
	f.tls.Register(flags, "otlp", "the collector")
	flags.Float64Var(&f.ratio, "trace-ratio", 1, "sampling ratio, 0 to 1, of tasks without trace context")
}

func (f *traceFlags) check(s *settings.Settings) {
	f.tls.CheckHTTPS(s, f.url)
	s.Refused(telemetry.TraceConfig{URL: f.url, Ratio: f.ratio}.Validate(), map[string]string{"URL": "otlp", "Ratio": "trace-ratio"})
}

// open returns the process's tracing; the caller must close it.
func (f *traceFlags) open(ctx context.Context, service string, p *daemon.Process) (*telemetry.Tracing, error) {
	files, err := f.tls.Open(p.Log)
	if err != nil {
		return nil, err
	}
	// A cancelled ctx must not fail this step: a later step stops the role gracefully.
	return telemetry.NewTracing(context.WithoutCancel(ctx), telemetry.TraceConfig{
		URL: f.url, TLS: files, Ratio: f.ratio, Service: service, Version: command.Version(),
		Log: p.Log.WithField("component", "trace"), Meter: p.Metrics.Meter("trace"),
	})
}

// GC percentages, instead of the runtime's 100. A worker has little live data and
// allocates much per message; a dispatcher holds a whole large request in memory
// during its acceptance.
const (
	dispatcherGarbage = 200
	workerGarbage     = 300
)

// collectLater sets the GC percentage unless GOGC is set.
func collectLater(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
