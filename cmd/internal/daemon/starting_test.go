package daemon

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
)

// TestNobodyIsDroppedWhenARoleTakesItsAddressOver hands a listener over while several callers send
// requests, each on a new connection. Every request must receive a response.
func TestNobodyIsDroppedWhenARoleTakesItsAddressOver(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	p := &Process{Log: log}
	listener, err := Listen(t.Context(), "--http", "127.0.0.1:0", nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // nothing depends on it
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	asked := make(chan struct{})
	for range 4 {
		callers.Go(func() {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			for ctx.Err() == nil {
				resp, err := client.Get("http://" + listener.Addr().String() + "/healthz")
				if err != nil {
					t.Errorf("not answered: %v", err)
					return
				}
				_ = resp.Body.Close() // only that it came counts
				select {
				case asked <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	for range 50 {
		handOver := p.ServeStarting(listener)
		for range 10 {
			select {
			case <-asked:
			case <-time.After(10 * time.Second):
				t.Fatal("early listener failed")
			}
		}
		ended := make(chan struct{})
		go func() { handOver(); close(ended) }()
		for over := false; !over; {
			select {
			case <-asked: // they go on while it is handed over
			case <-ended:
				over = true
			}
		}
	}
	last := p.ServeStarting(listener)
	stop()
	callers.Wait()
	last()
	if lines := hook.AllEntries(); len(lines) > 0 {
		t.Errorf("logged %v", lines)
	}
}

// Browsers open connections in advance. A connection without a request must not delay the role.
func TestACallerWhoSendsNothingDoesNotHoldUpTheRole(t *testing.T) {
	t.Parallel()
	log, _ := test.NewNullLogger()
	p := &Process{Log: log}
	listener, err := Listen(t.Context(), "--http", "127.0.0.1:0", nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // nothing depends on it
	handOver := p.ServeStarting(listener)
	idle, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }() // nothing depends on it
	ended := make(chan struct{})
	go func() { handOver(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the role waits for a caller who sends nothing")
	}
}
