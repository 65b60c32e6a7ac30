//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// connect connects to the broker like an agent.
func (f *fleet) connect() *nats.Conn {
	f.t.Helper()
	nc, err := nats.Connect(f.broker.URL)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(nc.Close)
	return nc
}

// settings are the settings of an agent's host.
type settings struct {
	Freezes []struct {
		Namespace, Reason string
		Until             time.Time
	}
	Groups []struct {
		Namespace, ID string
		CPULimit      float64 `json:"cpu_limit"`
	}
}

// String lists freezes and groups in the order of the reply.
func (s *settings) String() string {
	var words []string
	for _, f := range s.Freezes {
		words = append(words, "frozen "+f.Namespace+": "+f.Reason)
	}
	for _, g := range s.Groups {
		words = append(words, fmt.Sprintf("group %s of %s: %v", g.ID, g.Namespace, g.CPULimit))
	}
	return strings.Join(words, "; ")
}

// fromAgent is a message signed by the agent of a host.
func (f *fleet) fromAgent(host, subject, messageType, body string) *nats.Msg {
	msg := nats.NewMsg(subject)
	msg.Data = []byte(body)
	f.keys.ring().Sign(msg.Header, host, &fleetkey.Message{Purpose: messageType, Body: msg.Data})
	return msg
}

// askSettings requests the settings of a host like its agent, and retries until
// there is a reply.
func (f *fleet) askSettings(nc *nats.Conn, host string) (found settings) {
	t := f.t
	t.Helper()
	ask := fmt.Sprintf(`{"type":"procfleet.agent.v1.settings","id":"1","sent":%q,"host":%q,"instance":"i"}`, time.Now().UTC().Format(time.RFC3339Nano), host)
	testenv.Eventually(t, startTimeout, func() bool {
		msg, err := nc.RequestMsg(f.fromAgent(host, "procfleet.settings.0", "procfleet.agent.v1.settings", ask), time.Second)
		if err != nil {
			return false
		}
		var reply struct {
			Type, Error string
			Settings    settings
		}
		if err := json.Unmarshal(msg.Data, &reply); err != nil || reply.Type != "procfleet.agent.v1.settings_reply" {
			t.Fatalf("reply %v with %s", err, msg.Data)
		}
		found = reply.Settings
		return reply.Error == ""
	}, "the question for settings is answered")
	return found
}

// TestAgentsReceiveFreezesAndGroups checks that an agent receives the freezes
// and groups of its host and of all hosts, without lifted ones, and that agents are
// notified of changes.
func TestAgentsReceiveFreezesAndGroups(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1)
	_, c := f.dispatcher("")
	f.worker("")
	f.waitListed(c, 1)
	nc, host := f.connect(), f.hosts(1)[0]
	changes, err := nc.SubscribeSync("procfleet.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	notified := func(subject string) {
		t.Helper()
		for {
			msg, err := changes.NextMsg(startTimeout)
			if err != nil {
				t.Fatalf("no notification on %s: %v", subject, err)
			}
			if msg.Subject == subject && strings.Contains(string(msg.Data), "procfleet.agent.v1.settings_changed") {
				return
			}
		}
	}
	do := func(method, path string, body map[string]any, subject string) {
		t.Helper()
		if status, answer, ok := c.call(method, path, "", body); !ok || status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
		notified(subject)
	}
	const one, all = "procfleet.agent.0.10-99-0-1", "procfleet.settingschanged"
	on := []string{host}
	do(http.MethodPut, "/v1/freezes", map[string]any{"hosts": on, "ttl": "1h", "reason": "host"}, one)
	do(http.MethodPut, "/v1/freezes", map[string]any{"hosts": []string{"0:10.99.0.77"}, "ttl": "1h", "reason": "another"}, "procfleet.agent.0.10-99-0-77")
	do(http.MethodPut, "/v1/freezes", map[string]any{"namespace": "shop", "ttl": "2h", "reason": "everywhere"}, all)
	do(http.MethodPut, "/v1/groups", map[string]any{"hosts": on, "namespace": "shop", "groups": []any{map[string]any{"id": "g", "cpu_limit": 12.5}}}, one)

	found := f.askSettings(nc, host)
	if got, want := found.String(), "frozen shop: everywhere; frozen : host; group g of shop: 12.5"; got != want {
		t.Errorf("the agent received %q, want %q", got, want)
	}
	for _, freeze := range found.Freezes {
		if left := time.Until(freeze.Until); left < 30*time.Minute || left > 3*time.Hour {
			t.Errorf("the freeze %q ends in %v", freeze.Reason, left)
		}
	}
	do(http.MethodDelete, "/v1/freezes", map[string]any{"hosts": on}, one)
	do(http.MethodDelete, "/v1/freezes", map[string]any{"namespace": "shop"}, all)
	found = f.askSettings(nc, host)
	if got, want := found.String(), "group g of shop: 12.5"; got != want {
		t.Errorf("after the changes the agent received %q, want %q", got, want)
	}
}

// TestFrozenProcessesAreNotRestarted kills two processes. The process of the frozen
// namespace must stay down until the freeze is lifted.
func TestFrozenProcessesAreNotRestarted(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	frozen, free := procs.new("0:127.0.0.1", "frozen"), procs.new("0:127.0.0.1", "free")
	submit := func(p proc, namespace string) {
		t.Helper()
		id := u.c.submit(map[string]any{"action": "start", "hosts": []string{p.host}, "process": body(p.spec(), map[string]any{"namespace": namespace})})
		if end := u.c.wait(id); end.Counts["succeeded"] != 1 {
			t.Fatalf("%s: %v", p.name, end.Counts)
		}
	}
	submit(frozen, "frozen")
	submit(free, "free")
	u.run("freeze", "--host", frozen.host, "--namespace", "frozen", "--for", "1h", "--reason", "release")
	if list := u.run("freeze", "list"); !strings.Contains(list, "release") {
		t.Errorf("the list lacks a freeze:\n%s", list)
	}
	status := func() (pid int, until string) {
		t.Helper()
		var answer struct {
			Processes []struct {
				Reported *struct {
					Status struct {
						PID         int
						FrozenUntil string `json:"frozen_until"`
					}
				}
			}
		}
		u.c.get("/v1/processes?namespace=frozen", &answer)
		if len(answer.Processes) != 1 || answer.Processes[0].Reported == nil {
			return -1, ""
		}
		s := answer.Processes[0].Reported.Status
		return s.PID, s.FrozenUntil
	}
	testenv.Eventually(t, startTimeout, func() bool { _, until := status(); return until != "" }, "the agent has the freeze")

	before := frozen.pid()
	for _, p := range []proc{frozen, free} {
		if err := syscall.Kill(p.pid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, startTimeout, func() bool { pid, _ := status(); return pid == 0 }, "the frozen process is reported to be down")
	testenv.Eventually(t, startTimeout, func() bool { return free.starts() > 1 && free.pid() != 0 }, "the other process runs again")
	if n := frozen.starts(); n != 1 {
		t.Errorf("the frozen process was started %d times", n)
	}
	u.run("freeze", "lift", "--host", frozen.host, "--namespace", "frozen")
	testenv.Eventually(t, startTimeout, func() bool { pid := frozen.pid(); return pid != 0 && pid != before }, "the process runs again after the freeze is lifted")
}

// TestAgentEventsAreListedAndFollowed checks that an event is in responses and
// in the output of commands with --follow.
func TestAgentEventsAreListedAndFollowed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	js, err := jetstream.New(f.connect())
	if err != nil {
		t.Fatal(err)
	}
	emit := func(kind, message string) {
		t.Helper()
		at := time.Now().UTC().Format(time.RFC3339Nano)
		event := fmt.Sprintf(`{"type":"procfleet.agent.v1.event","id":%q,"sent":%q,"host":"0:10.99.0.5","instance":"i","at":%q,"kind":%q,
			"key":"shop:web","namespace":"shop","name":"web","pid":7,"message":%q,"details":{"limit":25}}`, message, at, at, kind, message)
		if _, err := js.PublishMsg(t.Context(), f.fromAgent("0:10.99.0.5", "procfleet.hostevent.0", "procfleet.agent.v1.event", event)); err != nil {
			t.Fatal(err)
		}
	}
	shown := func(query string) (messages []string, next string) {
		t.Helper()
		var page struct {
			Events []struct {
				Host, Kind, Message, Key string
				PID                      int
				Details                  map[string]any
			}
			Next string
		}
		c.get("/v1/events?"+query, &page)
		for _, e := range page.Events {
			if e.Host != "0:10.99.0.5" || e.Key != "shop:web" || e.PID != 7 || e.Details["limit"] != 25.0 {
				t.Errorf("an event is shown as %+v", e)
			}
			messages = append(messages, e.Message)
		}
		return messages, page.Next
	}
	follow := func(args ...string) *testenv.Child {
		t.Helper()
		return testenv.StartChild(t, nil, f.programs.procfleet, append([]string{"events", "--follow", "--server", c.url}, args...)...)
	}
	emit("gave_up", "first")
	all, chosen := follow("--json"), follow("--kind", "gave_up", "--host", "0:10.99.0.5")
	all.WaitOutput(t, startTimeout, `"message":"first"`)
	chosen.WaitOutput(t, startTimeout, "gave_up  shop:web  first")
	got, next := shown("")
	if !slices.Equal(got, []string{"first"}) {
		t.Errorf("the newest are %v", got)
	}
	emit("restarted", "second")
	emit("gave_up", "third")
	all.WaitOutput(t, startTimeout, `"message":"third"`)
	chosen.WaitOutput(t, startTimeout, "third")
	if text := all.Output(); strings.Count(text, `"message":"second"`) != 1 || strings.Count(text, `"message":"first"`) != 1 {
		t.Errorf("an event is not written once:\n%s", text)
	}
	if text := chosen.Output(); strings.Contains(text, "second") {
		t.Errorf("an event outside the filter is written:\n%s", text)
	}
	if got, _ := shown("after=" + next); !slices.Equal(got, []string{"second", "third"}) {
		t.Errorf("after the first there are %v", got)
	}
	if got, _ := shown("kind=restarted&namespace=shop&host=0:10.99.0.5"); !slices.Equal(got, []string{"second"}) {
		t.Errorf("of the kind there are %v", got)
	}
	all.Signal(syscall.SIGINT)
	if code := all.Wait(t, startTimeout); code != 0 {
		t.Errorf("following ends with exit code %d\n%s", code, all.Output())
	}
}
