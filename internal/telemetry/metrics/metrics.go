// Package metrics is a process's registry of metrics. It links only the OpenTelemetry
// metrics SDK and the Prometheus exporter, without any code that sends data, so that
// agents can use it.
package metrics

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// Registry contains the metrics of one process: those of the roles, of the Go runtime
// and of the operating system.
type Registry struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
}

// New returns an empty registry. Instruments are named
// procfleet_<role>_<noun>_<unit> and have no per-host label.
func New() (*Registry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("open the metrics exporter: %w", err)
	}
	return &Registry{registry: registry, provider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))}, nil
}

// Meter returns the meter of a component, for example "worker".
func (r *Registry) Meter(component string) metric.Meter { return r.provider.Meter(component) }

// Handler serves the registry in Prometheus' text format.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{Registry: r.registry})
}
