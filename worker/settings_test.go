package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
)

// askSettings requests the settings of a host as its agent does, until it receives a reply.
func (e *env) askSettings(h procfleet.Host) agentproto.SettingsReply {
	e.t.Helper()
	data, err := agentproto.Encode(&agentproto.SettingsRequest{
		Header: agentproto.Header{Type: agentproto.TypeSettingsRequest}, Host: h.String(), Instance: "i1",
	})
	if err != nil {
		e.t.Fatal(err)
	}
	var msg *nats.Msg
	e.eventually(func() bool {
		var err error
		msg, err = e.Conn.Request(agentproto.SettingsSubject(int64(h.Cloud)), data, time.Second)
		return err == nil
	}, "the question for settings is answered")
	var reply agentproto.SettingsReply
	if err := agentproto.Decode(msg.Data, agentproto.TypeSettingsReply, &reply); err != nil {
		e.t.Fatal(err)
	}
	return reply
}

func TestAgentsGetTheSettingsOfTheirHosts(t *testing.T) {
	t.Parallel()
	e := start(t)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	e.store.mu.Lock()
	e.store.freezes[host(1)] = []catalog.Freeze{
		{Scope: catalog.Scope{Namespace: "shop"}, Until: until, Reason: "release 7", By: "ci"},
		{Scope: catalog.Scope{Host: host(1)}, Until: until.Add(time.Hour)},
	}
	e.store.groups[host(1)] = []catalog.HostGroups{
		{Host: host(1), Namespace: "mall", Groups: []catalog.Group{{ID: "a", CPULimit: 50, CPUByLimit: true}, {ID: "b"}}},
		{Host: host(1), Namespace: "shop", Groups: []catalog.Group{{ID: "a", MemoryLimit: 25.5, MemoryByLimit: true}}},
	}
	e.store.mu.Unlock()
	before := time.Now().Add(-time.Minute)
	reply := e.askSettings(host(1))
	want := agentproto.Settings{
		Freezes: []agentproto.Freeze{{Namespace: "shop", Until: until, Reason: "release 7"}, {Until: until.Add(time.Hour)}},
		Groups: []agentproto.Group{
			{Namespace: "mall", ID: "a", CPULimit: 50, CPUByLimit: true},
			{Namespace: "mall", ID: "b"},
			{Namespace: "shop", ID: "a", MemoryLimit: 25.5, MemoryByLimit: true},
		},
	}
	if diff := cmp.Diff(want, reply.Settings); diff != "" || reply.Error != "" || reply.ServerTime.Before(before) {
		t.Errorf("answered at %v with error %q (-want +got):\n%s", reply.ServerTime, reply.Error, diff)
	}
	if diff := cmp.Diff(agentproto.Settings{}, e.askSettings(host(2)).Settings); diff != "" {
		t.Errorf("a host without settings gets (-want +got):\n%s", diff)
	}
}

func TestAnAgentLearnsThatItsSettingsAreUnreadable(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.store.setUnavailable(true)
	if reply := e.askSettings(host(1)); reply.Error == "" {
		t.Error("an unavailable store reports empty settings")
	}
	e.store.setUnavailable(false)
	huge := catalog.HostGroups{Namespace: "shop"}
	for range 3000 {
		huge.Groups = append(huge.Groups, catalog.Group{ID: strings.Repeat("x", 512)})
	}
	e.store.mu.Lock()
	e.store.groups[host(1)] = []catalog.HostGroups{huge}
	e.store.mu.Unlock()
	if reply := e.askSettings(host(1)); !strings.Contains(reply.Error, "reduce the groups") || len(reply.Settings.Groups) > 0 {
		t.Errorf("settings that exceed a message are reported as %q", reply.Error)
	}
	if reply := e.askSettings(host(2)); reply.Error != "" {
		t.Errorf("the store is available again, and the next host gets %q", reply.Error)
	}
}

func TestAQuestionOfAnotherAreaIsNotAnswered(t *testing.T) {
	t.Parallel()
	e := start(t)
	data, err := agentproto.Encode(&agentproto.SettingsRequest{Header: agentproto.Header{Type: agentproto.TypeSettingsRequest}, Host: host(1).String()})
	if err != nil {
		t.Fatal(err)
	}
	inbox, err := e.Conn.SubscribeSync(e.Conn.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{data, []byte("{")} {
		if err := e.Conn.PublishRequest(agentproto.SettingsSubject(7), inbox.Subject, bad); err != nil {
			t.Fatal(err)
		}
	}
	e.askSettings(host(2)) // is processed after the invalid requests
	if n, _, err := inbox.Pending(); err != nil || n != 0 {
		t.Errorf("%d answers (%v)", n, err)
	}
}

func TestManyFreezesWithLongReasonsFitAMessage(t *testing.T) {
	t.Parallel()
	e := start(t)
	many := make([]catalog.Freeze, 1500)
	for i := range many {
		many[i] = catalog.Freeze{
			Scope: catalog.Scope{Namespace: fmt.Sprint("shop-", i)}, Until: time.Now().Add(time.Hour), Reason: strings.Repeat("x", catalog.MaxReason),
		}
	}
	e.store.mu.Lock()
	e.store.freezes[host(1)] = many
	e.store.mu.Unlock()
	if reply := e.askSettings(host(1)); reply.Error != "" || len(reply.Settings.Freezes) != len(many) {
		t.Errorf("sent %d of %d freezes, %q", len(reply.Settings.Freezes), len(many), reply.Error)
	}
}
