package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// WithSignals returns a context that ends with the first SIGINT or SIGTERM;
// its cause names the signal. A second signal calls exit, for a user who does
// not want to wait for an orderly end. Call stop when signals need no more
// attention; it waits until none is handled any more.
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
