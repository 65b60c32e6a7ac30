package rediscatalog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/rediscatalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
)

const shop = "shop"

func hostOf(t *testing.T, text string) procfleet.Host {
	t.Helper()
	h, err := procfleet.ParseHost(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func catalogHosts(t *testing.T, n int) []procfleet.Host {
	t.Helper()
	hosts := make([]procfleet.Host, n)
	for i := range hosts {
		hosts[i] = hostOf(t, fmt.Sprintf("0:10.0.%d.%d", i>>8, i&255))
	}
	return hosts
}

func definition(mark string, hosts ...procfleet.Host) []catalog.Definition {
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.Contact = shop, "web", "web", mark
	return []catalog.Definition{{Spec: spec, Hosts: hosts}}
}

func onHosts(hosts []procfleet.Host, name string) []catalog.Process {
	ps := make([]catalog.Process, len(hosts))
	for i, h := range hosts {
		ps[i] = catalog.Process{Host: h, Namespace: shop, Name: name}
	}
	return ps
}

func reportOf(h procfleet.Host, number int64, names ...string) catalog.Report {
	r := catalog.Report{Host: h, Number: number}
	for _, name := range names {
		r.Processes = append(r.Processes, catalog.ReportedProcess{Key: shop + ":" + name, Namespace: shop, Name: name})
	}
	return r
}

// shown returns the processes of the namespace as pages of 100 show them; the
// number of all must be right on each.
func shown(t *testing.T, s catalog.Store) []catalog.Process {
	t.Helper()
	var all []catalog.Process
	for {
		page, total, err := s.EntryPage(t.Context(), shop, len(all), 100)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page {
			all = append(all, page[i].Process)
		}
		if len(page) < 100 || len(all) == total {
			if len(all) != total {
				t.Errorf("pages show %d entries of %d", len(all), total)
			}
			return all
		}
	}
}

// nothingLeft verifies that nothing is stored without a registration.
func nothingLeft(t *testing.T, c *redis.Client) {
	t.Helper()
	for _, key := range redistest.Keys(t, c, "*") {
		if !strings.Contains(key, ":answer:") && key != "pf:{index}:format" {
			t.Errorf("without a registration there is still %s", key)
		}
	}
}

func mustNot(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSpecIsKeptOnceAndGoesWithItsLastRegistration(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	hosts := catalogHosts(t, 1200)
	specs := func(when string, want int64) {
		t.Helper()
		for _, key := range []string{"specs", "uses"} {
			if n, err := c.HLen(t.Context(), s.NamespaceKey(shop)+key).Result(); n != want || err != nil {
				t.Errorf("%s there are %d %s, %v; want %d", when, n, key, err, want)
			}
		}
	}
	for _, step := range []struct {
		when    string
		mark    string
		hosts   []procfleet.Host
		replace bool
		want    int64
	}{
		{"after many were registered", "a", hosts, false, 1},
		{"after the same came again", "b", hosts, false, 1},
		{"after some were replaced", "b", hosts[:700], true, 2},
		{"after they were replaced again", "b", hosts[:700], true, 2},
		{"after all were replaced", "b", hosts, true, 1},
		{"after one came back", "a", hosts[:1], true, 2},
	} {
		_, err := s.Register(t.Context(), definition(step.mark, step.hosts...), step.replace)
		mustNot(t, err)
		specs(step.when, step.want)
	}
	_, err := s.Unregister(t.Context(), onHosts(hosts[1:], "web"))
	mustNot(t, err)
	specs("while one is left", 1)
	_, err = s.Unregister(t.Context(), onHosts(hosts, "web"))
	mustNot(t, err)
	nothingLeft(t, c)
}

func TestReporterThatDiesLeavesNothingThatPagesShow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	hosts := catalogHosts(t, 700)
	var first, second []catalog.Report
	for _, h := range hosts {
		first, second = append(first, reportOf(h, 1, "old", "both")), append(second, reportOf(h, 2, "both", "new"))
	}
	dirty := func(when string, want int64) {
		t.Helper()
		if n, err := c.HLen(t.Context(), s.NamespaceKey(shop)+"dirty").Result(); n != want || err != nil {
			t.Errorf("%s: %d processes have dirty marks, %v; want %d", when, n, err, want)
		}
	}
	for _, step := range []struct {
		when    string
		reports []catalog.Report
		cut     rediscatalog.Cut
		dirty   int64
		names   []string
	}{
		{"before the first report is written", first, rediscatalog.AfterTouch, 1400, nil},
		{"after the first report is written", first, rediscatalog.AfterWrite, 1400, []string{"both", "old"}},
		{"before the second report is written", second, rediscatalog.AfterTouch, 2100, []string{"both", "old"}},
		{"after the second report is written", second, rediscatalog.AfterWrite, 2100, []string{"both", "new"}},
	} {
		mustNot(t, s.ReportAndDie(t.Context(), step.reports, step.cut))
		dirty(step.when, step.dirty)
		var want []catalog.Process
		for _, name := range step.names {
			want = append(want, onHosts(hosts, name)...)
		}
		got := shown(t, s)
		slices.SortFunc(want, byMember)
		if !slices.Equal(got, want) {
			t.Errorf("%s: pages show %d entries, want %d", step.when, len(got), len(want))
		}
		dirty(step.when+" and pages are read", 0)
	}
}

func byMember(a, b catalog.Process) int {
	if rediscatalog.Member(a) < rediscatalog.Member(b) {
		return -1
	}
	return 1
}

func TestWhatTheIndexLostComesBackWithinAnHourOfReports(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	hosts := catalogHosts(t, 50)
	begin, step := int64(1_800_000_000_000_000), time.Minute.Microseconds()
	for n := range int64(61) {
		reports := make([]catalog.Report, len(hosts))
		for i, h := range hosts {
			reports[i] = reportOf(h, begin+n*step, "web")
		}
		mustNot(t, s.Report(t.Context(), reports))
		if n == 0 {
			mustNot(t, c.Del(t.Context(), s.NamespaceKey(shop)+"index").Err())
		}
	}
	if got := shown(t, s); len(got) != len(hosts) {
		t.Errorf("pages show %d of %d hosts", len(got), len(hosts))
	}
}

func TestWhatOnlyTheIndexKnowsIsNeitherShownNorCounted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, redisconn.Options{URL: server.URL()}), server.Client(t)
	hosts := catalogHosts(t, 300)
	_, err := s.Register(t.Context(), definition("a", hosts[200:]...), false)
	mustNot(t, err)
	for _, h := range hosts {
		m := rediscatalog.Member(catalog.Process{Host: h, Namespace: shop, Name: "web"})
		mustNot(t, c.ZAdd(t.Context(), s.NamespaceKey(shop)+"index", redis.Z{Member: m}).Err())
	}
	want := onHosts(hosts[200:], "web")
	slices.SortFunc(want, byMember)
	if got := shown(t, s); !slices.Equal(got, want) {
		t.Errorf("pages show %d entries", len(got))
	}
}

// TestIndexIsRightAfterAStormOfChanges reads pages while the same processes are reported, omitted
// from reports, registered and unregistered. Reading a page removes entries from the index that are
// neither registered nor reported.
//
// Many short rounds find more errors than a long one, in which later changes repair the index.
func TestIndexIsRightAfterAStormOfChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rounds := 6
	if testenv.IsLong() {
		rounds = 40
	}
	for range rounds {
		t.Run("storm", func(t *testing.T) {
			t.Parallel()
			storm(t, server)
		})
	}
}

func storm(t *testing.T, server *redistest.Server) {
	t.Helper()
	s, c := open(t, redisconn.Options{URL: server.URL(), Prefix: t.Name() + ":"}), server.Client(t)
	hosts, names := catalogHosts(t, 6), []string{"web", "db", "cache"}
	var reporting, reading sync.WaitGroup
	over, stop := context.WithCancel(t.Context())
	for range 3 {
		reading.Go(func() {
			for over.Err() == nil {
				if _, _, err := s.EntryPage(t.Context(), shop, 0, 10); err != nil {
					t.Errorf("page: %v", err)
					return
				}
			}
		})
	}
	for k := range 6 {
		reporting.Go(func() {
			for n := range 20 {
				h := hosts[rand.IntN(len(hosts))]
				var err error
				switch rand.IntN(6) {
				case 0:
					_, err = s.Register(t.Context(), definition("a", h), true)
				case 1:
					_, err = s.Unregister(t.Context(), onHosts(hosts[:3], "web"))
				default:
					number := int64(n*6 + k + 1)
					err = s.Report(t.Context(), []catalog.Report{reportOf(h, number, names[rand.IntN(4)%3:]...), reportOf(hosts[n%6], number, names[:rand.IntN(3)]...)})
				}
				if err != nil {
					t.Errorf("change: %v", err)
					return
				}
			}
		})
	}
	reporting.Wait()
	stop()
	reading.Wait()

	var all, want []catalog.Process
	for _, name := range names {
		all = append(all, onHosts(hosts, name)...)
	}
	entries, err := s.Entries(t.Context(), all)
	mustNot(t, err)
	for i := range entries {
		if entries[i].Registration != nil || entries[i].Reported != nil {
			want = append(want, entries[i].Process)
		}
	}
	slices.SortFunc(want, byMember)
	if got := shown(t, s); !slices.Equal(got, want) {
		t.Errorf("pages show\n%v, but there is\n%v", got, want)
	}
	if n, err := c.ZCard(t.Context(), s.NamespaceKey(shop)+"index").Result(); int(n) != len(want) || err != nil {
		t.Errorf("the index has %d entries, %v; want %d", n, err, len(want))
	}
}

func TestRegistrationsWaitForReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // it has none
	s := open(t, redisconn.Options{URL: server.URL(), WaitReplicas: 1, WaitTimeout: 10 * time.Millisecond})
	s.SetPatience(100 * time.Millisecond)
	h := catalogHosts(t, 1)[0]
	for name, call := range map[string]func() error{
		"register":   func() error { _, err := s.Register(t.Context(), definition("a", h), false); return err },
		"unregister": func() error { _, err := s.Unregister(t.Context(), onHosts([]procfleet.Host{h}, "web")); return err },
		"groups": func() error {
			return s.SetGroups(t.Context(), []catalog.HostGroups{{Host: h, Namespace: shop, Groups: []catalog.Group{{ID: "g"}}}})
		},
	} {
		if err := call(); !errors.Is(err, taskstore.ErrUnavailable) {
			t.Errorf("%s without a replica: %v", name, err)
		}
	}
	s.SetPatience(30 * time.Second)
	mustNot(t, s.Report(t.Context(), []catalog.Report{reportOf(h, 1, "web")})) // the next report is complete
}

// The repeat must return the changes of the first attempt, which it finds already made.
func TestRepeatAfterALostAnswerAnswersWhatTheFirstAttemptChanged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redisconn.Options{URL: server.URL()})
	changes(t, s, func() *stores.Redis {
		s := open(t, redisconn.Options{URL: server.URL()})
		s.LoseAnswers()
		return s
	})
}

// changes makes a change of each kind, each with a store that losing opens and that loses the reply,
// and verifies that the result reports the change. s loses no reply.
func changes(t *testing.T, s *stores.Redis, losing func() *stores.Redis) {
	t.Helper()
	hosts := catalogHosts(t, 2)
	answered := func(what string, got []bool, err error, want ...bool) {
		t.Helper()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: existed %v, %v; want %v", what, got, err, want)
		}
	}
	_, err := s.Register(t.Context(), definition("a", hosts[0]), false)
	mustNot(t, err)
	existed, err := losing().Register(t.Context(), definition("b", hosts...), false)
	mustNot(t, err)
	answered("register", existed[0], err, true, false)

	got, err := losing().Unregister(t.Context(), onHosts(hosts, "web"))
	answered("unregister", got, err, true, true)
	got, err = s.Unregister(t.Context(), onHosts(hosts, "web"))
	answered("unregister again", got, err, false, false)

	scopes := []catalog.Scope{{Host: hosts[0]}, {Host: hosts[1]}, {Host: hosts[1]}}
	_, err = s.Freeze(t.Context(), scopes[1:], catalog.Freezing{TTL: time.Hour})
	mustNot(t, err)
	got, err = losing().Lift(t.Context(), scopes)
	answered("lift", got, err, false, true, false)
	got, err = s.Lift(t.Context(), scopes)
	answered("lift again", got, err, false, false, false)
}
