package rediscatalog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func openQuietly(tb testing.TB, server *redistest.Server) *stores.Redis {
	tb.Helper()
	s, err := stores.OpenRedis(tb.Context(), redisconn.Options{URL: server.URL(), Log: testenv.Silent()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func BenchmarkCatalog(b *testing.B) {
	server := redistest.StartQuick(b)
	another := func(tb testing.TB) catalogtest.Store { tb.Helper(); return openQuietly(tb, server) }
	catalogtest.RunBenchmarks(b, catalogtest.Harness{
		Open: another,
		// Redis continues to run: reopening simulates a new process of procfleet.
		Reopen: func(tb testing.TB, _ catalogtest.Store) catalogtest.Store { tb.Helper(); return another(tb) },
	})
}

// measured is a store with access to the statistics of its server.
type measured struct {
	*stores.Redis
	client *redis.Client
}

func measure(b *testing.B) measured {
	b.Helper()
	server := redistest.Start(b, "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	b.Cleanup(func() { _ = client.Close() })
	return measured{Redis: openQuietly(b, server), client: client}
}

// processorTime returns the processor time that the server has used so far, including writes to disk.
func (m measured) processorTime(b *testing.B) time.Duration {
	b.Helper()
	info, err := m.client.InfoMap(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var user, system float64
	if _, err := fmt.Sscan(info["CPU"]["used_cpu_user"]+" "+info["CPU"]["used_cpu_sys"], &user, &system); err != nil {
		b.Fatal(err)
	}
	return time.Duration((user + system) * float64(time.Second))
}

func (m measured) memory(b *testing.B) float64 {
	b.Helper()
	info, err := m.client.InfoMap(b.Context(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	var used float64
	if _, err := fmt.Sscan(info["Memory"]["used_memory_dataset"], &used); err != nil {
		b.Fatal(err)
	}
	return used
}

func fleetHosts(b *testing.B, n int) []procfleet.Host {
	b.Helper()
	hosts := make([]procfleet.Host, n)
	for i := range hosts {
		h, err := procfleet.NewHost(0, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
		if err != nil {
			b.Fatal(err)
		}
		hosts[i] = h
	}
	return hosts
}

// fleetReport returns the report of an agent with five processes.
func fleetReport(h procfleet.Host, number int64) catalog.Report {
	now := time.UnixMicro(number).UTC()
	r := catalog.Report{Host: h, AgentID: "020000000242ac110002171654321" + h.String(), Instance: "0b0c1a4e-8d9a-4d7e-9a0c-3b1f5e6d7c8b", Number: number, At: now}
	for i := range 5 {
		name := fmt.Sprintf("bkmonitorbeat_%d", i)
		r.Processes = append(r.Processes, catalog.ReportedProcess{
			Key: "nodeman:" + name, Namespace: "nodeman", Name: name, ProcName: "bkmonitorbeat", Desired: catalog.DesiredUp,
			Status: procfleet.ProcessStatus{
				At: now, UTCOffset: 28800, Running: true, Supervised: true, Phase: "running", PID: 4711 + i, Stat: "S", Threads: 12,
				StartedAt: now.Add(-time.Hour), ElapsedMS: 3_600_000, UserMS: 12_000, SystemMS: 3_000, CPU: 0.7, CPUAverage: 0.4,
				MemoryBytes: 64 << 20, MemoryPercent: 0.4, HostFreeKB: 8 << 20, Version: "3.30.1120",
				RegisteredAt: now.Add(-2 * time.Hour), LastStartedAt: now.Add(-time.Hour),
			},
		})
	}
	return r
}

// BenchmarkReport stores the reports of a fleet of 10,000 hosts without new processes, in batches of
// 500, as workers do.
func BenchmarkReport(b *testing.B) {
	const n, part = 10_000, 500
	m := measure(b)
	hosts := fleetHosts(b, n)
	number := int64(1_800_000_000_000_000)
	send := func() {
		number++
		for some := range slices.Chunk(hosts, part) {
			rs := make([]catalog.Report, len(some))
			for i, h := range some {
				rs[i] = fleetReport(h, number)
			}
			if err := m.Report(b.Context(), rs); err != nil {
				b.Fatal(err)
			}
		}
	}
	empty := m.memory(b)
	begin, cpu := redistest.InsideScripts(b, m.client), m.processorTime(b)
	send()
	first, firstCPU := redistest.InsideScripts(b, m.client)-begin, m.processorTime(b)-cpu
	size := m.memory(b) - empty
	begin, cpu = redistest.InsideScripts(b, m.client), m.processorTime(b)
	for b.Loop() {
		send()
	}
	reports := float64(b.N) * n
	b.ReportMetric(float64((redistest.InsideScripts(b, m.client)-begin).Nanoseconds())/1000/reports, "script-us/report")
	b.ReportMetric(float64((m.processorTime(b)-cpu).Nanoseconds())/1000/reports, "redis-us/report")
	b.ReportMetric(float64(first.Nanoseconds())/1000/n, "first-script-us/report")
	b.ReportMetric(float64(firstCPU.Nanoseconds())/1000/n, "first-redis-us/report")
	b.ReportMetric(size/n, "bytes/host")
}

// BenchmarkRegister registers a process on 10,000 hosts, and then again.
func BenchmarkRegister(b *testing.B) {
	const n = 10_000
	m := measure(b)
	hosts := fleetHosts(b, n)
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath = "GSEKIT_BIZ_100605", "gamesvr_1", "gamesvr", "/data/game/bin"
	spec.PidPath, spec.Account = "/data/game/gamesvr.pid", "user00"
	spec.Control.Start, spec.Control.Stop, spec.Control.Restart = "./start.sh gamesvr", "./stop.sh gamesvr", "./restart.sh gamesvr"
	ps := make([]catalog.Process, n)
	for i, h := range hosts {
		ps[i] = catalog.Process{Host: h, Namespace: spec.Namespace, Name: spec.Name}
	}
	ds := []catalog.Definition{{Spec: spec, Hosts: hosts}}
	empty := m.memory(b)
	var scripts, spent time.Duration
	var size float64
	for b.Loop() {
		before, begin := redistest.InsideScripts(b, m.client), time.Now()
		if _, err := m.Register(b.Context(), ds, true); err != nil {
			b.Fatal(err)
		}
		spent += time.Since(begin)
		scripts += redistest.InsideScripts(b, m.client) - before
		size = m.memory(b) - empty
		if _, err := m.Unregister(b.Context(), ps); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(spent.Seconds()*1000/float64(b.N), "register-ms")
	b.ReportMetric(float64(scripts.Nanoseconds())/1000/float64(b.N)/n, "script-us/host")
	b.ReportMetric(float64(scripts.Nanoseconds())/1e6/float64(b.N)/(n/500), "script-ms/call")
	b.ReportMetric(size/n, "bytes/registration")
}

// BenchmarkEntryPage reads 1,000 entries that are registered and reported, out
// of 10,000.
func BenchmarkEntryPage(b *testing.B) {
	const n, part = 10_000, 500
	m := measure(b)
	hosts := fleetHosts(b, n)
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName = "nodeman", "bkmonitorbeat_2", "bkmonitorbeat"
	if _, err := m.Register(b.Context(), []catalog.Definition{{Spec: spec, Hosts: hosts}}, false); err != nil {
		b.Fatal(err)
	}
	for some := range slices.Chunk(hosts, part) {
		rs := make([]catalog.Report, len(some))
		for i, h := range some {
			rs[i] = fleetReport(h, 1)
		}
		if err := m.Report(b.Context(), rs); err != nil {
			b.Fatal(err)
		}
	}
	begin := redistest.InsideScripts(b, m.client)
	for b.Loop() {
		page, total, err := m.EntryPage(b.Context(), "nodeman", 25_000, 1000)
		if err != nil || len(page) != 1000 || total != 5*n || page[0].Reported == nil {
			b.Fatalf("%d of %d entries, %v", len(page), total, err)
		}
	}
	b.ReportMetric(float64((redistest.InsideScripts(b, m.client)-begin).Nanoseconds())/1e6/float64(b.N), "script-ms/page")
}
