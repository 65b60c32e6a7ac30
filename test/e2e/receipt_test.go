//go:build linux

package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// forgery is a forged reply to a request with the result of one item.
type forgery struct {
	what  string
	reply func(request *nats.Msg, sent agentproto.Results) *nats.Msg
}

// TestAttackerOnTheBrokerCannotForgeAReceipt sends forged receipts. Agents must send
// their results again until a worker has stored them.
func TestAttackerOnTheBrokerCannotForgeAReceipt(t *testing.T) {
	t.Parallel()
	const hosts = 8
	f := newFleet(t, hosts)
	_, c := f.dispatcher("", "--slack", "10m")
	worker := f.worker("")
	f.waitListed(c, hosts)
	thief := newAttacker(t, f.broker.URL)
	forgeries := f.forgeries(c, thief)
	if len(forgeries) != hosts {
		t.Fatalf("%d forgeries for %d hosts", len(forgeries), hosts)
	}

	all := f.procs.grid(f.hosts(hosts), 1, "kept")
	id := c.submit(waitingStart(all))
	testenv.Eventually(t, finishTimeout, func() bool { return c.task(id).Counts["delivered"] == hosts }, "agents accept the start")
	requests := thief.hear("procfleet.result.>")
	worker.Freeze(t)
	release(t, all)
	times := map[string]int{}
	for deceived := 0; deceived < hosts; {
		request := next(t, requests, agentproto.TypeResults)
		var sent agentproto.Results
		if err := agentproto.Decode(request.Data, agentproto.TypeResults, &sent); err != nil {
			t.Fatal(err)
		}
		for i, host := range f.hosts(hosts) {
			if host != sent.Host {
				continue
			}
			if times[host]++; times[host] == 3 {
				deceived++
			}
			msg := forgeries[i].reply(request, sent)
			msg.Subject = request.Reply
			if err := thief.conn.PublishMsg(msg); err != nil {
				t.Errorf("%s: %v", forgeries[i].what, err)
			}
		}
	}
	worker.Signal(syscall.SIGCONT)
	c.wait(id)
	f.verifyStarted(c, id, all)
}

// forgeries returns replies that an agent must not accept as a receipt of its
// request. Some are genuine receipts of a finished task.
func (f *fleet) forgeries(c *client, thief *attacker) []forgery {
	f.t.Helper()
	inboxes := thief.hear("_INBOX.>")
	c.wait(c.submit(operation("start", f.procs.grid(f.hosts(len(f.agents)), 1, "genuine"))))
	genuine := map[string]*nats.Msg{} // by host
	for len(genuine) < len(f.agents) {
		receipt := next(f.t, inboxes, agentproto.TypeReceipt)
		for _, a := range f.agents {
			if strings.HasPrefix(receipt.Subject, "_INBOX.0."+strings.ReplaceAll(a.ip, ".", "-")+".") {
				genuine[a.host()] = receipt
			}
		}
	}
	recorded := func(of string) *nats.Msg { return &nats.Msg{Header: genuine[of].Header, Data: genuine[of].Data} }
	body := func(sent agentproto.Results) []byte {
		return encode(f.t, &agentproto.Receipt{Header: header(agentproto.TypeReceipt), Task: sent.Task, Stored: agentproto.ItemList{0, 1, 2, 3, 4, 5, 6, 7}})
	}
	signed := func(ring *fleetkey.Ring, host, purpose, answers string, data []byte) *nats.Msg {
		msg := &nats.Msg{Header: nats.Header{}, Data: data}
		ring.Host(host).Sign(msg.Header, &fleetkey.Message{Purpose: purpose, Answers: answers, Body: data})
		return msg
	}
	ring, otherFleet, other := f.keys.ring(), newKeys(f.t).ring(), f.agents[0].host()
	return []forgery{
		{"the acknowledgement of a stream", func(*nats.Msg, agentproto.Results) *nats.Msg {
			return &nats.Msg{Data: []byte(`{"stream":"PROCFLEET_RESULTS","seq":1}`)}
		}},
		{"an unsigned receipt", func(_ *nats.Msg, sent agentproto.Results) *nats.Msg { return &nats.Msg{Data: body(sent)} }},
		{"a receipt that is signed with another fleet's key", func(_ *nats.Msg, sent agentproto.Results) *nats.Msg {
			return signed(otherFleet, sent.Host, agentproto.TypeReceipt, sent.ID, body(sent))
		}},
		{"a receipt that is signed with another host's identity", func(_ *nats.Msg, sent agentproto.Results) *nats.Msg {
			return signed(ring, other, agentproto.TypeReceipt, sent.ID, body(sent))
		}},
		{"a receipt that is signed as another message", func(_ *nats.Msg, sent agentproto.Results) *nats.Msg {
			return signed(ring, sent.Host, agentproto.TypePresenceReply, sent.ID, body(sent))
		}},
		{"a recorded receipt of this host", func(_ *nats.Msg, sent agentproto.Results) *nats.Msg { return recorded(sent.Host) }},
		{"a recorded receipt of another host", func(*nats.Msg, agentproto.Results) *nats.Msg { return recorded(other) }},
		{"a genuine signature on another receipt", func(_ *nats.Msg, sent agentproto.Results) *nats.Msg {
			return &nats.Msg{Header: genuine[sent.Host].Header, Data: body(sent)}
		}},
	}
}
