package catalogtest

import (
	"context"
	"fmt"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func reportChecks() []Check {
	return []Check{
		{Name: "a report is kept whole", Fn: reportWhole},
		{Name: "reports are answered in order", Fn: reportsInOrder},
		{Name: "a report that is not newer changes nothing", Fn: newestCounts},
		{Name: "the newest report of one call counts", Fn: newestOfCall},
		{Name: "the newest of simultaneous reports counts", Fn: newestOfMany},
		{Name: "a process that is left out falls back to its registration", Fn: leftOut},
		{Name: "processes without namespace and name are reported, but no entries", Fn: reportedNameless},
		{Name: "of two reported processes with the same name the last is the entry", Fn: reportedTwice},
	}
}

// wholeReport returns a report with a value in every field.
func wholeReport(h procfleet.Host) catalog.Report {
	east := time.FixedZone("east", 8*3600)
	full := catalog.ReportedProcess{
		Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "nginx: \"<中文>\"", Desired: catalog.DesiredDown,
		Status: procfleet.ProcessStatus{
			At: epoch.Add(time.Microsecond).In(east), UTCOffset: -5 * 3600, Running: true, Supervised: true, Phase: "backoff", AgentID: "a",
			PID: 4711, Stat: "S", Threads: 12, StartedAt: epoch.Add(-time.Hour).In(east), ElapsedMS: 3_600_001, UserMS: 12, SystemMS: 34,
			CPU: 0.1, CPUAverage: 12.345678901234567, MemoryBytes: 1 << 53, MemoryPercent: 1e-9, HostFreeKB: 123456789,
			Version: "1.2.3-β", Health: "ok\n", RegisteredAt: epoch.Add(-2 * time.Hour).In(east), LastStartedAt: epoch.Add(-3 * time.Hour).In(east),
			Failures: 3, NextRetryAt: epoch.Add(time.Minute).In(east),
			PIDs: []int{4711, 4712}, Instances: 3, TreeCPU: 33.3, TreeMemoryBytes: 1 << 54,
			NextRunAt: epoch.Add(time.Hour).In(east), FrozenUntil: epoch.Add(2 * time.Hour).In(east), Restarts: 9,
			LastExit: &procfleet.LastExit{At: epoch.Add(-time.Minute).In(east), Known: true, Code: 3, Signal: "SIGTERM", Why: "limit"},
		},
	}
	return catalog.Report{
		Host: h, AgentID: "0200:\"{agent}\"", Instance: "instance", Number: epoch.UnixMicro() + 1, At: epoch.In(east),
		Processes: []catalog.ReportedProcess{
			full,
			{Key: "/opt/a:b/java", ProcName: "java", Desired: catalog.DesiredNone, Status: procfleet.ProcessStatus{At: epoch}},
			{Key: "key", ProcName: "", Desired: catalog.DesiredUp},
		},
	}
}

// inUTC returns r with all times in UTC, as stores must return it.
func inUTC(r catalog.Report) catalog.Report {
	r.At = r.At.UTC()
	for i := range r.Processes {
		s := &r.Processes[i].Status
		for _, at := range []*time.Time{&s.At, &s.StartedAt, &s.RegisteredAt, &s.LastStartedAt, &s.NextRetryAt, &s.NextRunAt, &s.FrozenUntil} {
			*at = at.UTC()
		}
		if s.LastExit != nil {
			s.LastExit.At = s.LastExit.At.UTC()
		}
	}
	return r
}

func reportWhole(ctx context.Context, t T, s Subject) {
	h := host(3, 1)
	sendReports(ctx, t, s, wholeReport(h))
	want := inUTC(wholeReport(h))
	equal(t, "report", reported(ctx, t, s, h)[0], want)
	p := process(h, "shop", "web")
	equal(t, "entry", entries(ctx, t, s, p)[0], catalog.Entry{Process: p, Reported: &want.Processes[0], ReportedAt: want.At, AgentID: want.AgentID})
}

func reportsInOrder(ctx context.Context, t T, s Subject) {
	hs := wideHosts(t)
	noHost := report(procfleet.Host{}, 1, running("shop", "web", 1)) // must not prevent the store from accepting the other reports
	sent := []catalog.Report{noHost}
	var want []catalog.Report
	for i, h := range hs {
		r := report(h, i, running("shop", "web", i))
		sent, want = append(sent, r), append(want, r, catalog.Report{}, r)
	}
	sendReports(ctx, t, s, sent...)
	var asked []procfleet.Host
	for _, h := range hs {
		asked = append(asked, h, host(h.Cloud, 77), h)
	}
	equal(t, "reports", reported(ctx, t, s, asked...), want)
	if _, total := entryPage(ctx, t, s, "shop", 0, 1); total != len(hs) {
		t.Errorf("%d entries of %d hosts", total, len(hs))
	}
}

func newestCounts(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	first := report(h, 5, running("shop", "web", 5), running("shop", "db", 5))
	for _, sent := range []catalog.Report{first, report(h, 4, running("shop", "web", 4), running("shop", "cache", 4)), report(h, 5, running("shop", "web", 50))} {
		sent.Instance = fmt.Sprint("instance ", sent.Processes[0].Status.PID)
		sendReports(ctx, t, s, sent)
		shown(ctx, t, s, "shop", "0:10.0.0.1 shop db: reported 5", "0:10.0.0.1 shop web: reported 5")
		equal(t, "instance", reported(ctx, t, s, h)[0].Instance, "instance 5")
	}
	last := report(h, 6, running("shop", "web", 6))
	sendReports(ctx, t, s, last)
	equal(t, "report", reported(ctx, t, s, h)[0], last)
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop web: reported 6")
}

func newestOfCall(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(0, 2)
	sendReports(ctx, t, s, report(a, 2, running("shop", "a2", 2)), report(b, 1, running("shop", "b1", 1)),
		report(a, 3, running("shop", "a3", 3)), report(a, 1, running("shop", "a1", 1)), report(a, 3, running("shop", "a33", 3)))
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop a3: reported 3", "0:10.0.0.2 shop b1: reported 1")
}

func newestOfMany(ctx context.Context, t T, s Subject) {
	const reporters, each = 8, 20
	hs := hosts(3)
	together(reporters, func(i int) {
		for n := range each {
			number := (n*7%each)*reporters + i + 1
			var rs []catalog.Report
			for _, h := range hs {
				rs = append(rs, report(h, number, running("shop", fmt.Sprint("p", number), number), running("shop", "web", number)))
			}
			if err := s.Report(ctx, rs); err != nil {
				t.Errorf("report: %v", err)
			}
		}
	})
	var want []string
	for _, name := range []string{fmt.Sprint("p", reporters*each), "web"} {
		for _, h := range hs {
			want = append(want, fmt.Sprintf("%s shop %s: reported %d", h, name, reporters*each))
		}
	}
	shown(ctx, t, s, "shop", want...)
}

func leftOut(ctx context.Context, t T, s Subject) {
	h, other := host(0, 1), host(0, 2)
	registerOn(ctx, t, s, false, "shop", "web", "w", h)
	sendReports(ctx, t, s, report(h, 1, running("shop", "web", 1), running("shop", "db", 1), running("mall", "db", 1)), report(other, 1, running("shop", "db", 1)))
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop db: reported 1", "0:10.0.0.2 shop db: reported 1", "0:10.0.0.1 shop web: registered w, reported 1")
	shown(ctx, t, s, "mall", "0:10.0.0.1 mall db: reported 1")
	sendReports(ctx, t, s, report(h, 2, running("shop", "cache", 2)))
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop cache: reported 2", "0:10.0.0.2 shop db: reported 1", "0:10.0.0.1 shop web: registered w")
	shown(ctx, t, s, "mall")
	gone := entries(ctx, t, s, process(h, "shop", "db"), process(h, "shop", "web"))
	equal(t, "entry that is left out and not registered", gone[0], catalog.Entry{Process: process(h, "shop", "db")})
	equal(t, "what is known of the report of one that is left out", []any{gone[1].ReportedAt, gone[1].AgentID}, []any{time.Time{}, ""})
	sendReports(ctx, t, s, report(h, 3), report(other, 2))
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop web: registered w")
	equal(t, "empty report", reported(ctx, t, s, h)[0], report(h, 3))
}

func reportedNameless(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	sent := report(h, 1, running("shop", "web", 1), catalog.ReportedProcess{Key: "/opt/java", ProcName: "java", Desired: catalog.DesiredUp})
	for _, bad := range badNames() {
		if bad != "a\xff" { // a store need not preserve a text that is not UTF-8
			sent.Processes = append(sent.Processes, running("shop", bad, 2), running(bad, "web", 2))
		}
	}
	sendReports(ctx, t, s, sent)
	equal(t, "report", reported(ctx, t, s, h)[0], sent)
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop web: reported 1")
	for _, p := range badProcesses(h) {
		if e := entries(ctx, t, s, p)[0]; e.Reported != nil {
			t.Errorf("%q is an entry", stand(e))
		}
		if _, total := entryPage(ctx, t, s, p.Namespace, 0, 10); total != 0 && p.Namespace != "shop" {
			t.Errorf("%q has %d entries", p.Namespace, total)
		}
	}
	sendReports(ctx, t, s, report(h, 2, running("shop", "web\xff", 1)))
	shown(ctx, t, s, "shop")
}

func reportedTwice(ctx context.Context, t T, s Subject) {
	h := host(0, 1)
	sent := report(h, 1, running("shop", "web", 1), running("shop", "db", 2), running("shop", "web", 3))
	sendReports(ctx, t, s, sent)
	equal(t, "report", reported(ctx, t, s, h)[0], sent)
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop db: reported 2", "0:10.0.0.1 shop web: reported 3")
	sendReports(ctx, t, s, report(h, 2, running("shop", "db", 4)))
	shown(ctx, t, s, "shop", "0:10.0.0.1 shop db: reported 4")
}
