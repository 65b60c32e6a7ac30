package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// RunBenchmarks measures the store calls of a fan-out to 10,000 hosts.
func RunBenchmarks(b *testing.B, h Harness) {
	b.Helper()
	for _, bench := range []struct {
		name string
		fn   func(ctx context.Context, b *testing.B, s taskstore.Store)
	}{
		{"create 1", benchCreate(1)},
		{"create 10000", benchCreate(10_000)},
		{"begin and done 10000", benchBegin},
		{"record 10000 in batches of 500", benchRecord},
		{"task", benchRead(func(ctx context.Context, b *testing.B, s taskstore.Store, task procfleet.Task) {
			b.Helper()
			look(ctx, b, s, task.ID)
		})},
		{"page of 1000", benchRead(func(ctx context.Context, b *testing.B, s taskstore.Store, task procfleet.Task) {
			b.Helper()
			_, _, err := s.Results(ctx, task.ID, taskstore.ResultQuery{Limit: 1000})
			must(b, err, "results")
		})},
		{"all chunks of 10000", benchRead(func(ctx context.Context, b *testing.B, s taskstore.Store, task procfleet.Task) {
			b.Helper()
			items(ctx, b, s, task)
		})},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			bench.fn(b.Context(), b, h.Open(b))
		})
	}
}

func benchCreate(n int) func(context.Context, *testing.B, taskstore.Store) {
	return func(ctx context.Context, b *testing.B, s taskstore.Store) {
		b.Helper()
		d := Draft(n)
		for b.Loop() {
			create(ctx, b, s, d)
		}
	}
}

// benchRead returns a benchmark of read on a finished task with 10,000 items.
func benchRead(read func(context.Context, *testing.B, taskstore.Store, procfleet.Task)) func(context.Context, *testing.B, taskstore.Store) {
	return func(ctx context.Context, b *testing.B, s taskstore.Store) {
		b.Helper()
		task := mixed(ctx, b, s, 10_000)
		for b.Loop() {
			read(ctx, b, s, task)
		}
	}
}

func benchBegin(ctx context.Context, b *testing.B, s taskstore.Store) {
	b.Helper()
	d := Draft(10_000)
	for b.Loop() {
		b.StopTimer()
		task := create(ctx, b, s, d)
		b.StartTimer()
		together(len(d.Chunks), func(c int) {
			if _, err := s.Begin(ctx, task.ID, c, 0); err != nil {
				b.Errorf("begin: %v", err)
			}
			first := d.Chunks[c].First
			all := upTo(first + len(d.Chunks[c].Items))[first:]
			if err := s.Delivered(ctx, task.ID, c, all, true); err != nil {
				b.Errorf("delivered: %v", err)
			}
		})
	}
}

func benchRecord(ctx context.Context, b *testing.B, s taskstore.Store) {
	b.Helper()
	d := Draft(10_000)
	var rs []procfleet.Result
	for i := range 10_000 {
		r := agentResult(i, procfleet.ReasonSucceeded)
		r.Status = &procfleet.ProcessStatus{At: time.Now(), Running: true, PID: 1000 + i, Command: "/usr/bin/web --port 80", Phase: "running"}
		r.FinishedAt = time.Now()
		rs = append(rs, r)
	}
	for b.Loop() {
		b.StopTimer()
		task := create(ctx, b, s, d)
		b.StartTimer()
		for part := range slices.Chunk(rs, 500) {
			record(ctx, b, s, task.ID, part...)
		}
	}
}
