package stores_test

import (
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/stores"
)

// plain are the methods that are neither measured nor traced.
var plain = []string{"Claimants", "Close", "Lease", "Now", "Release", "Reported", "Republished", "Settle", "Undone"}

// callName returns the published name of a method's call: the method in snake case.
func callName(method string) string {
	if method == "HostPage" {
		return "hosts"
	}
	var name strings.Builder
	for i, c := range method {
		if unicode.IsUpper(c) && i > 0 && unicode.IsLower(rune(method[i-1])) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToLower(c))
	}
	return name.String()
}

func TestEveryCallIsMeasuredAndTracedUnderItsName(t *testing.T) {
	t.Parallel()
	bolt, err := stores.OpenBolt(filepath.Join(t.TempDir(), "store"), boltdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reader := sdkmetric.NewManualReader()
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	store, err := stores.Instrument(bolt, "worker", sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"), tracer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, root := tracer.Start(t.Context(), "root")
	want := map[string]uint64{}
	contract := reflect.TypeFor[stores.Full]()
	for method := range contract.Methods() {
		if method.Name == "Close" {
			continue
		}
		if !slices.Contains(plain, method.Name) {
			want[callName(method.Name)] = 1
		}
		args := []reflect.Value{reflect.ValueOf(ctx)}
		for i := 1; i < method.Type.NumIn() && (!method.Type.IsVariadic() || i < method.Type.NumIn()-1); i++ {
			args = append(args, reflect.Zero(method.Type.In(i)))
		}
		reflect.ValueOf(store).MethodByName(method.Name).Call(args)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	root.End()

	if got := measured(t, reader); !maps.Equal(got, want) {
		t.Errorf("measured calls %v\nwant %v", got, want)
	}
	traced := map[string]uint64{}
	for _, span := range spans.GetSpans() {
		name, ours := strings.CutPrefix(span.Name, "store ")
		if !ours {
			continue
		}
		traced[name]++
		if span.Parent.SpanID() != root.SpanContext().SpanID() || span.SpanKind != trace.SpanKindClient {
			t.Errorf("span %q has parent %v and kind %v", span.Name, span.Parent.SpanID(), span.SpanKind)
		}
	}
	if !maps.Equal(traced, want) {
		t.Errorf("traced calls %v\nwant %v", traced, want)
	}
}

// measured returns how often each call was measured.
func measured(t *testing.T, reader sdkmetric.Reader) map[string]uint64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		histogram, ok := m.Data.(metricdata.Histogram[float64])
		if !ok || m.Name != "procfleet_worker_store_seconds" {
			t.Errorf("unexpected metric %s", m.Name)
			continue
		}
		for _, point := range histogram.DataPoints {
			call, _ := point.Attributes.Value(attribute.Key("call"))
			counts[call.AsString()] = point.Count
		}
	}
	return counts
}

func TestAFailedCallHasAFailedSpan(t *testing.T) {
	t.Parallel()
	bolt, err := stores.OpenBolt(filepath.Join(t.TempDir(), "store"), boltdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bolt.Close(); err != nil {
			t.Error(err)
		}
	})
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	store, err := stores.Instrument(bolt, "dispatcher", sdkmetric.NewMeterProvider().Meter("test"), tracer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, root := tracer.Start(t.Context(), "root")
	_, err = store.Task(ctx, "GSETASK:1")
	root.End()
	if recorded := spans.GetSpans(); err == nil || len(recorded) == 0 || recorded[0].Name != "store task" || recorded[0].Status.Description != err.Error() {
		t.Errorf("error %v, spans %v", err, recorded)
	}
}
