package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/procfleet/procfleet/internal/lifecycle"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func untilCancelled(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestPartsStopInReverseOrderOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var stopped journal
	g := lifecycle.NewGroup(testenv.Log(t), time.Minute)
	for _, name := range []string{"bus", "store", "worker"} {
		g.Add(name, func(ctx context.Context) error {
			<-ctx.Done()
			stopped.add(name)
			return nil
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if want := []string{"worker", "store", "bus"}; !slices.Equal(stopped.lines, want) {
		t.Errorf("stopped %v, want %v", stopped.lines, want)
	}
}

func TestTheFirstThatFailsStopsAllAndIsNamed(t *testing.T) {
	t.Parallel()
	g := lifecycle.NewGroup(testenv.Log(t), time.Minute)
	broken := errors.New("disk on fire")
	g.Add("store", func(context.Context) error { return broken })
	g.Add("worker", untilCancelled)
	err := g.Run(t.Context())
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "store: disk on fire") {
		t.Errorf("error %v", err)
	}
	if strings.Count(err.Error(), "disk on fire") != 1 {
		t.Errorf("the cause is repeated: %v", err)
	}
}

func TestAPartThatEndsByItselfIsAnError(t *testing.T) {
	t.Parallel()
	g := lifecycle.NewGroup(testenv.Log(t), time.Minute)
	g.Add("worker", untilCancelled)
	g.Add("agent", func(context.Context) error { return nil })
	if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "agent ended by itself") {
		t.Errorf("error %v", err)
	}
}

func TestAnErrorWhileStoppingIsReported(t *testing.T) {
	t.Parallel()
	g := lifecycle.NewGroup(testenv.Log(t), time.Minute)
	g.Add("store", func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("not flushed")
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ctx); err == nil || !strings.Contains(err.Error(), "store: not flushed") {
		t.Errorf("error %v", err)
	}
}

func TestTheStopIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := lifecycle.NewGroup(testenv.Log(t), 10*time.Second)
		release := make(chan struct{})
		var orderly bool
		g.Add("store", untilCancelled)
		g.Add("stuck", func(context.Context) error { <-release; return nil })
		g.Add("worker", func(ctx context.Context) error { <-ctx.Done(); orderly = true; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		err := g.Run(ctx)
		if err == nil || !strings.Contains(err.Error(), "stuck") || strings.Contains(err.Error(), "worker") {
			t.Errorf("error %v, want one that names the stuck part", err)
		}
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("took %v, want the limit", took)
		}
		if !orderly {
			t.Error("the part after the stuck one was not stopped in order")
		}
		close(release)
		synctest.Wait()
	})
}
