package rediscatalog_test

import (
	"slices"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
)

func TestReportsOfHostsThatAreGoneExpire(t *testing.T) {
	t.Parallel()
	server := redistest.BuildClock(t).Start(t)
	s := openOn(t, server)
	host := func(addr string) procfleet.Host {
		h, err := procfleet.NewHost(0, addr)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	gone, busy := host("10.0.0.1"), host("10.0.0.2")
	announce := func(h procfleet.Host) {
		t.Helper()
		if err := s.Announce(t.Context(), []taskstore.Announcement{{Host: h, Instance: "i"}}); err != nil {
			t.Fatal(err)
		}
	}
	report := func(h procfleet.Host, number int64) {
		t.Helper()
		r := catalog.Report{Host: h, Number: number, Processes: []catalog.ReportedProcess{{Namespace: "shop", Name: "web"}}}
		if err := s.Report(t.Context(), []catalog.Report{r}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want ...procfleet.Host) {
		t.Helper()
		reports, err := s.Reported(t.Context(), []procfleet.Host{gone, busy})
		if err != nil {
			t.Fatal(err)
		}
		var hosts []procfleet.Host
		for _, r := range reports {
			if !r.Host.IsZero() {
				hosts = append(hosts, r.Host)
			}
		}
		_, total, err := s.EntryPage(t.Context(), "shop", 0, 10)
		if err != nil || total != len(want) || !slices.Equal(hosts, want) {
			t.Errorf("%s: reports of %v and %d processes, %v; want reports of %v", when, hosts, total, err, want)
		}
	}
	announce(gone)
	report(gone, 1)
	server.Advance(t, taskstore.PresenceTTL+taskstore.InstanceMemory-time.Hour)
	announce(busy)
	report(busy, 1)
	expect("before it is forgotten", gone, busy)
	server.Advance(t, 2*time.Hour)
	announce(busy)
	expect("after that", busy)
	report(gone, 1)
	expect("when it returns", gone, busy)
	server.Advance(t, 2*taskstore.InstanceMemory)
	expect("without any agent")
	if left := redistest.Keys(t, server.Client(t), "*reports*"); len(left) != 0 {
		t.Errorf("without an agent there is still %v", left)
	}
}
