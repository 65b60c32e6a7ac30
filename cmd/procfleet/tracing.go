package main

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/telemetry"
)

// traceFlags say where traces go.
type traceFlags struct {
	url   string
	tls   tlsflags.Client
	ratio float64
}

func (f *traceFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "otlp", "", "URL of an OpenTelemetry collector (OTLP over HTTP) for traces, for example http://127.0.0.1:4318 "+
		"(default: what OTEL_EXPORTER_OTLP_ENDPOINT says, else no traces)")
	f.tls.Register(flags, "otlp", "the collector")
	flags.Float64Var(&f.ratio, "trace-ratio", 1, "part of the tasks that are traced, 0 to 1, unless the caller's trace has decided")
}

func (f *traceFlags) check(s *settings.Settings) {
	f.tls.CheckHTTPS(s, f.url)
	s.Refused(telemetry.TraceConfig{URL: f.url, Ratio: f.ratio}.Validate(), map[string]string{"URL": "otlp", "Ratio": "trace-ratio"})
}

// open returns what makes a process's tracers, to be closed at its end.
func (f *traceFlags) open(ctx context.Context, service string, p *daemon.Process) (*telemetry.Tracing, error) {
	files, err := f.tls.Open(p.Log)
	if err != nil {
		return nil, err
	}
	// Who is told to stop meanwhile ends in good order at the next step.
	return telemetry.NewTracing(context.WithoutCancel(ctx), telemetry.TraceConfig{
		URL: f.url, TLS: files, Ratio: f.ratio, Service: service, Version: version,
		Log: p.Log.WithField("component", "trace"), Meter: p.Metrics.Meter("trace"),
	})
}
