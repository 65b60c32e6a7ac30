package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

func openQuietly(tb testing.TB, server *redistest.Server) *redisstore.Store {
	tb.Helper()
	s, err := redisstore.Open(tb.Context(), redisconn.Options{URL: server.URL(), Log: testenv.Silent()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func BenchmarkStore(b *testing.B) {
	storetest.RunBenchmarks(b, storetest.Harness{
		Open: func(tb testing.TB) taskstore.Store {
			tb.Helper()
			return openQuietly(tb, redistest.StartQuick(tb))
		},
	})
}

// floorScript does the minimum work of a store that receives results one by one and counts each once.
var floorScript = redis.NewScript(`
local applied = 0
for i = 1, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('HINCRBY', KEYS[2], 'succeeded', 1)
    applied = applied + 1
  end
end
return applied
`)

// BenchmarkRecordAgainstFloor measures Record and the floor in turns on the
// same server, with the same packed results, and reports their ratio.
func BenchmarkRecordAgainstFloor(b *testing.B) {
	for _, order := range []string{"in order", "shuffled"} {
		b.Run(order, func(b *testing.B) {
			server := redistest.StartQuick(b)
			s := openQuietly(b, server)
			client := redis.NewClient(&redis.Options{Addr: server.Addr})
			b.Cleanup(func() { _ = client.Close() })
			results := benchResults(10_000)
			if order == "shuffled" {
				rand.Shuffle(len(results), func(i, j int) { results[i], results[j] = results[j], results[i] })
			}
			var floor, store, floorInside, storeInside time.Duration
			round := 0
			for b.Loop() {
				round++
				before := redistest.InsideScripts(b, client)
				floor += timeFloor(b, client, fmt.Sprintf("floor:%d", round), results)
				between := redistest.InsideScripts(b, client)
				store += timeRecord(b, s, results)
				floorInside, storeInside = floorInside+between-before, storeInside+redistest.InsideScripts(b, client)-between
			}
			b.ReportMetric(floor.Seconds()*1000/float64(round), "floor-ms")
			b.ReportMetric(store.Seconds()*1000/float64(round), "record-ms")
			b.ReportMetric(float64(store)/float64(floor), "ratio")
			b.ReportMetric(float64(storeInside)/float64(floorInside), "ratio-in-redis")
		})
	}
}

func benchResults(n int) []procfleet.Result {
	now := time.Now()
	rs := make([]procfleet.Result, n)
	for i := range rs {
		rs[i] = procfleet.Result{
			Item: i, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent, Message: "success",
			AcceptedAt: now, StartedAt: now, FinishedAt: now,
			Status: &procfleet.ProcessStatus{At: now, Running: true, PID: 1000 + i, Phase: "running", Command: "/usr/bin/web --port 80", Stat: "S"},
		}
	}
	return rs
}

func timeFloor(b *testing.B, client *redis.Client, key string, results []procfleet.Result) time.Duration {
	b.Helper()
	begin := time.Now()
	for part := range slices.Chunk(results, 500) {
		args := make([]any, 0, 2*len(part))
		for i := range part {
			args = append(args, part[i].Item, pack.Result(&part[i]))
		}
		if err := floorScript.Run(b.Context(), client, []string{key, key + ":counts"}, args...).Err(); err != nil {
			b.Fatal(err)
		}
	}
	spent := time.Since(begin)
	if err := client.Unlink(b.Context(), key, key+":counts").Err(); err != nil {
		b.Fatal(err)
	}
	return spent
}

func timeRecord(b *testing.B, s *redisstore.Store, results []procfleet.Result) time.Duration {
	b.Helper()
	d := storetest.Draft(len(results))
	d.Timeout, d.Retention = time.Minute, time.Second // old rounds go away
	task, _, err := s.Create(b.Context(), d)
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	for part := range slices.Chunk(results, 500) {
		if _, err := s.Record(b.Context(), []taskstore.Batch{{Task: task.ID, Results: part}}); err != nil {
			b.Fatal(err)
		}
	}
	spent := time.Since(begin)
	if t, err := s.Task(b.Context(), task.ID); err != nil || t.State != procfleet.TaskFinished {
		b.Fatalf("task is %s: %v", t.State, err)
	}
	return spent
}

// BenchmarkPresences reads the presences of the hosts of a 10,000-host task as deliveries
// do, 256 at a time.
func BenchmarkPresences(b *testing.B) {
	const n, part = 10_000, 256
	s := openQuietly(b, redistest.StartQuick(b))
	hosts := make([]procfleet.Host, n)
	as := make([]taskstore.Announcement, n)
	for i := range hosts {
		h, err := procfleet.NewHost(0, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))
		if err != nil {
			b.Fatal(err)
		}
		hosts[i] = h
		as[i] = taskstore.Announcement{Host: h, AgentID: fmt.Sprintf("agent-%d", i), Instance: fmt.Sprintf("instance-%d", i), Version: "1.0.0", OS: "linux", Arch: "amd64", StartedAt: time.Now()}
	}
	announce := func(ctx context.Context) {
		for some := range slices.Chunk(as, part) {
			if err := s.Announce(ctx, some); err != nil {
				b.Fatal(err)
			}
		}
	}
	announce(b.Context())
	b.Run("announce 10000", func(b *testing.B) {
		for b.Loop() {
			announce(b.Context())
		}
	})
	b.Run("presences of 10000", func(b *testing.B) {
		for b.Loop() {
			for some := range slices.Chunk(hosts, part) {
				if _, err := s.Presences(b.Context(), some); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
