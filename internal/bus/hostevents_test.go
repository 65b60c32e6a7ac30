package bus_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/testenv"
)

func hostOf(cloud procfleet.CloudArea, n byte) procfleet.Host {
	return procfleet.Host{Cloud: cloud, Addr: netip.AddrFrom4([4]byte{10, 0, 0, n})}
}

// tell publishes an event as a worker does for the agent of a host.
func tell(t *testing.T, js jetstream.JetStream, e agentproto.Event) {
	t.Helper()
	h, err := procfleet.ParseHost(e.Host)
	if err != nil {
		t.Fatal(err)
	}
	e.Type = agentproto.TypeEvent
	data, err := agentproto.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), fmt.Sprintf("procfleet.hostevent.%d", h.Cloud), data); err != nil {
		t.Fatal(err)
	}
}

func readEvents(t *testing.T, b *bus.Bus, q bus.HostEventQuery) bus.HostEventPage {
	t.Helper()
	page, err := b.HostEvents(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func messages(page bus.HostEventPage) []string {
	var all []string
	for _, e := range page.Events {
		all = append(all, e.Message)
	}
	return all
}

func TestAnEventIsReadAsItsAgentToldIt(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	at := time.Date(2026, 11, 21, 8, 0, 0, 123456000, time.UTC)
	tell(t, env.JS, agentproto.Event{
		Host: "3:fd00::1", AgentID: "a-1", Instance: "i", At: at, Kind: agentproto.EventLimitExceeded, Key: "shop:web", Namespace: "shop", Name: "web",
		ProcName: "java", PID: 4711, Message: "memory of 31 %", Details: map[string]any{"value": 31.25},
	})
	page := readEvents(t, env.Bus, bus.HostEventQuery{Newest: true, Limit: 10})
	h, err := procfleet.ParseHost("3:fd00::1")
	if err != nil {
		t.Fatal(err)
	}
	want := bus.HostEventPage{Next: 1, Refused: map[string]int{}, Events: []procfleet.HostEvent{{
		Sequence: 1, At: at, Host: h, AgentID: "a-1", Instance: "i", Kind: "limit_exceeded", Key: "shop:web", Namespace: "shop", Name: "web",
		ProcName: "java", PID: 4711, Message: "memory of 31 %", Details: map[string]any{"value": 31.25},
	}}}
	if diff := cmp.Diff(want, page, cmpopts.EquateComparable(procfleet.Host{}), cmpopts.IgnoreFields(procfleet.HostEvent{}, "ReceivedAt")); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if len(page.Events) > 0 && page.Events[0].ReceivedAt.IsZero() {
		t.Error("it was received at no time")
	}
}

func TestEventsAreReadFromTheNewestAndGoOnFromThere(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	if page := readEvents(t, env.Bus, bus.HostEventQuery{Newest: true, Limit: 5}); len(page.Events) != 0 || page.Next != 0 || page.More {
		t.Errorf("of no events there are %+v", page)
	}
	var want []string
	add := func(n int) {
		for range n {
			want = append(want, strconv.Itoa(len(want)))
			tell(t, env.JS, agentproto.Event{Host: "0:10.0.0.1", Kind: "restarted", Message: want[len(want)-1]})
		}
	}
	add(9)
	newest := readEvents(t, env.Bus, bus.HostEventQuery{Newest: true, Limit: 4})
	if diff := cmp.Diff(want[5:], messages(newest)); diff != "" || newest.Next != 9 || newest.More {
		t.Errorf("the newest are %+v\n%s", newest, diff)
	}
	if page := readEvents(t, env.Bus, bus.HostEventQuery{After: newest.Next, Limit: 4}); len(page.Events) != 0 || page.Next != 9 || page.More {
		t.Errorf("after the newest there are %+v", page)
	}
	add(5)
	var got []string
	for q := (bus.HostEventQuery{After: newest.Next, Limit: 2}); ; {
		page := readEvents(t, env.Bus, q)
		got = append(got, messages(page)...)
		if q.After = page.Next; !page.More {
			break
		}
	}
	if diff := cmp.Diff(want[9:], got); diff != "" {
		t.Errorf("after the newest (-want +got):\n%s", diff)
	}
	// After the loss of the stream a new one begins, and reading begins with it.
	for _, q := range []bus.HostEventQuery{{Limit: 100}, {After: 1000, Limit: 100}} {
		if got := messages(readEvents(t, env.Bus, q)); !slices.Equal(got, want) {
			t.Errorf("from the beginning with %+v: %v", q, got)
		}
	}
}

func TestEventsAreChosen(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	for _, e := range []agentproto.Event{
		{Host: "0:10.0.0.1", Kind: "restarted", Namespace: "shop", Message: "a"},
		{Host: "0:10.0.0.2", Kind: "restarted", Namespace: "mall", Message: "b"},
		{Host: "3:10.0.0.1", Kind: "gave_up", Namespace: "shop", Message: "c"},
		{Host: "0:10.0.0.1", Kind: "gave_up", Namespace: "mall", Message: "d"},
		{Host: "0:10.0.0.1", Kind: "starved", Message: "e"},
	} {
		tell(t, env.JS, e)
	}
	if err := env.Conn.Publish("procfleet.hostevent.0", []byte("no event")); err != nil {
		t.Fatal(err)
	}
	foreign, err := agentproto.Encode(&agentproto.Event{Header: agentproto.Header{Type: agentproto.TypeEvent}, Host: "0:10.0.0.1", Kind: "restarted", Message: "of area 3"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.JS.Publish(t.Context(), "procfleet.hostevent.3", foreign); err != nil {
		t.Fatal(err)
	}
	all := readEvents(t, env.Bus, bus.HostEventQuery{Newest: true, Limit: 100}).Events
	if len(all) != 5 {
		t.Fatalf("%d events", len(all))
	}
	for _, tt := range []struct {
		q    bus.HostEventQuery
		want []string
	}{
		{bus.HostEventQuery{Host: hostOf(0, 1)}, []string{"a", "d", "e"}},
		{bus.HostEventQuery{Host: hostOf(3, 1)}, []string{"c"}},
		{bus.HostEventQuery{Host: hostOf(3, 2)}, nil},
		{bus.HostEventQuery{Kind: "gave_up"}, []string{"c", "d"}},
		{bus.HostEventQuery{Namespace: "shop"}, []string{"a", "c"}},
		{bus.HostEventQuery{Host: hostOf(0, 1), Namespace: "mall", Kind: "gave_up"}, []string{"d"}},
		{bus.HostEventQuery{Since: all[2].ReceivedAt}, []string{"c", "d", "e"}},
		{bus.HostEventQuery{Since: time.Now().Add(time.Hour)}, nil},
	} {
		q := tt.q
		q.Limit, q.Newest = 100, q.Since.IsZero()
		if diff := cmp.Diff(tt.want, messages(readEvents(t, env.Bus, q))); diff != "" {
			t.Errorf("newest of %+v (-want +got):\n%s", tt.q, diff)
		}
		if !q.Since.IsZero() {
			continue
		}
		q.After, q.Newest = 1, false
		want := slices.DeleteFunc(slices.Clone(tt.want), func(m string) bool { return m == "a" })
		if diff := cmp.Diff(want, messages(readEvents(t, env.Bus, q)), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("after the first, of %+v (-want +got):\n%s", tt.q, diff)
		}
	}
}

// A page reads a limited number of events. A single matching event among many others is found by reading
// further pages.
func TestAPageOfEventsLooksAtABoundedNumber(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	const others = 10_500
	tell(t, env.JS, agentproto.Event{Host: "0:10.0.0.9", Kind: "gave_up", Message: "first"})
	data, err := agentproto.Encode(&agentproto.Event{Header: agentproto.Header{Type: agentproto.TypeEvent}, Host: "0:10.0.0.1", Kind: "restarted"})
	if err != nil {
		t.Fatal(err)
	}
	for range others {
		if _, err := env.JS.PublishAsync("procfleet.hostevent.0", data, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-env.JS.PublishAsyncComplete():
	case <-time.After(time.Minute):
		t.Fatal("the stream does not take the events")
	}
	tell(t, env.JS, agentproto.Event{Host: "0:10.0.0.9", Kind: "gave_up", Message: "last"})
	q := bus.HostEventQuery{Kind: "gave_up", Newest: true, Limit: 10}
	if got := messages(readEvents(t, env.Bus, q)); !slices.Equal(got, []string{"last"}) {
		t.Errorf("the newest are %v", got)
	}
	q.After, q.Newest = 1, false
	page := readEvents(t, env.Bus, q)
	if len(page.Events) != 0 || !page.More || page.Next <= 1 || page.Next > others {
		t.Fatalf("a page among others is %+v", page)
	}
	q.After = page.Next
	if got := messages(readEvents(t, env.Bus, q)); !slices.Equal(got, []string{"last"}) {
		t.Errorf("going on, there are %v", got)
	}
	q = bus.HostEventQuery{Kind: "restarted", Newest: true, Limit: 2500}
	if got := readEvents(t, env.Bus, q).Events; len(got) != 2500 || got[0].Sequence != others+1-2500+1 || got[2499].Sequence != others+1 {
		t.Errorf("%d events of several windows", len(got))
	}
	info := streamInfo(t, env.JS, bus.StreamHostEvents)
	if info.State.Consumers != 0 {
		t.Errorf("%d consumers are left", info.State.Consumers)
	}
}

func TestEventsAreAwayWithTheServer(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	env.Server.Shutdown()
	if _, err := env.Bus.HostEvents(t.Context(), bus.HostEventQuery{Limit: 1}); err == nil {
		t.Error("events were read without a server")
	}
}

func TestFewHostsAreToldOneByOneAndManyAllAtOnce(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	sub, err := env.Conn.SubscribeSync("procfleet.>")
	if err != nil {
		t.Fatal(err)
	}
	told := func() string {
		t.Helper()
		msg, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var m agentproto.SettingsChanged
		if err := agentproto.Decode(msg.Data, agentproto.TypeSettingsChanged, &m); err != nil {
			t.Fatal(err)
		}
		return msg.Subject
	}
	var many []procfleet.Host
	for n := range 1000 {
		many = append(many, procfleet.Host{Addr: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})})
	}
	var got []string
	for _, hosts := range [][]procfleet.Host{{hostOf(0, 1), hostOf(3, 2)}, many, nil} {
		if err := env.Bus.SettingsChanged(hosts); err != nil {
			t.Fatal(err)
		}
	}
	if err := env.Conn.Publish("procfleet.last", nil); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		got = append(got, told())
	}
	want := []string{"procfleet.agent.0.10-0-0-1", "procfleet.agent.3.10-0-0-2", agentproto.SettingsChangedAll, agentproto.SettingsChangedAll}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if msg, err := sub.NextMsg(time.Minute); err != nil || msg.Subject != "procfleet.last" {
		t.Errorf("more was told: %v", fmt.Sprint(msg, err))
	}
}
