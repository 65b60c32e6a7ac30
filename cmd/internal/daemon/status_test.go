package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet/internal/telemetry/metrics"
)

// The response of /readyz must contain no addresses, because it needs no credentials.
func TestStrangersHearNoAddress(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	cause := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 4222}, Err: errors.New("connection refused")}
	for want, err := range map[string]error{
		"not connected to NATS (the log says why)\nthe task store does not answer (the log says why)\nthe journal is full": errors.Join(
			fmt.Errorf("not connected to NATS: %w", cause), fmt.Errorf("the task store does not answer: %w", cause), errors.New("the journal is full")),
		"starting": errors.New("starting"),
		"starting: waiting for NATS (the log says why)": nil,
	} {
		p := &Process{Log: log}
		p.ReadyWhen(func(context.Context) error { return err })
		if err == nil {
			p.WaitFor("NATS", cause)
		}
		if got := p.Ready(t.Context()); got == nil || got.Error() != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	logged := 0
	for _, entry := range hook.AllEntries() {
		if text, err := entry.String(); err == nil && strings.Contains(text, "10.0.0.5") {
			logged++
		}
	}
	if logged != 2 {
		t.Errorf("the address is in %d lines of the log, want 2", logged)
	}
}

// The status listener must reject requests for other host names: otherwise a web page whose name
// resolves to 127.0.0.1 could read profiles, which contain data of the memory.
func TestTheStatusListenerHasNoForeignName(t *testing.T) {
	t.Parallel()
	log, _ := test.NewNullLogger()
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Log: log, Metrics: registry}
	address := freeAddress(t)
	f := &Flags{statusHTTP: address, pprof: true}
	stop, err := f.serve(t.Context(), p.handler(true), log)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for host, want := range map[string]int{"evil.example": http.StatusForbidden, "localhost": http.StatusOK, address: http.StatusOK} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/debug/pprof/cmdline", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // only the status counts
		if resp.StatusCode != want {
			t.Errorf("host %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	return server.Listener.Addr().String()
}
