package agenttest

import (
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// serve replies to the agent in place of dispatchers and workers.
func (h *Host) serve() {
	h.tb.Helper()
	for subject, receive := range map[string]func(*nats.Msg){
		agentproto.ResultSubject("s", h.cloud): h.receiveResults,
		agentproto.EventSubject(h.cloud):       h.receiveEvent,
		agentproto.PresenceSubject(h.cloud):    h.replyPresence,
		agentproto.SettingsSubject(h.cloud):    h.replySettings,
	} {
		sub, err := h.nats.Conn.Subscribe(subject, receive)
		if err != nil {
			h.tb.Fatal(err)
		}
		h.tb.Cleanup(func() { sub.Unsubscribe() })
	}
	if err := h.nats.Conn.FlushTimeout(Patience); err != nil {
		h.tb.Fatal(err)
	}
}

func (h *Host) receiveResults(msg *nats.Msg) {
	var m agentproto.Results
	if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &m); err != nil {
		h.tb.Error(err)
		return
	}
	receipt := &agentproto.Receipt{Header: header(agentproto.TypeReceipt), Task: m.Task}
	h.mu.Lock()
	for _, r := range m.Results {
		id := ID{m.Task, r.Item}
		h.results[id] = append(h.results[id], r)
		receipt.Stored = append(receipt.Stored, r.Item)
	}
	h.mu.Unlock()
	h.reply(msg, receipt)
}

func (h *Host) receiveEvent(msg *nats.Msg) {
	var e agentproto.Event
	if err := agentproto.Decode(msg.Data, agentproto.TypeEvent, &e); err != nil {
		h.tb.Error(err)
		return
	}
	h.mu.Lock()
	if !slices.ContainsFunc(h.events, func(known agentproto.Event) bool { return known.ID == e.ID }) { // a repeated event, which the stream would reject
		h.events = append(h.events, e)
	}
	h.mu.Unlock()
	h.reply(msg, &agentproto.Receipt{Header: header(agentproto.TypeReceipt), Event: e.ID})
}

// GetAhead sets how far the servers' clock is ahead of the clock of this host.
func (h *Host) GetAhead(by time.Duration) { h.ahead.Store(int64(by)) }

// now returns the servers' time.
func (h *Host) now() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())).UTC() }

func (h *Host) replyPresence(msg *nats.Msg) {
	h.reply(msg, &agentproto.PresenceReply{Header: header(agentproto.TypePresenceReply), ServerTime: h.now()})
}

func (h *Host) replySettings(msg *nats.Msg) {
	h.reply(msg, &agentproto.SettingsReply{Header: header(agentproto.TypeSettingsReply), ServerTime: h.now()})
}

func (h *Host) reply(msg *nats.Msg, m agentproto.Message) {
	data, err := agentproto.Encode(m)
	if err == nil {
		err = msg.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		h.tb.Error(err)
	}
}

func header(messageType string) agentproto.Header {
	return agentproto.Header{Type: messageType, ID: messageType, Sent: time.Now().UTC()}
}

// Heard returns the results of an operation that the agent has sent or replied so far.
func (h *Host) Heard(id ID) []agentproto.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.results[id])
}

// Events returns the events of a kind that the agent has sent so far.
func (h *Host) Events(kind string) []agentproto.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.events), func(e agentproto.Event) bool { return e.Kind != kind })
}

// Event waits for an event of a kind about the process with the key; "" = any process.
func (h *Host) Event(kind, key string) agentproto.Event {
	h.tb.Helper()
	var found agentproto.Event
	testenv.Eventually(h.tb, Patience, func() bool {
		for _, e := range h.Events(kind) {
			if key == "" || e.Key == key {
				found = e
				return true
			}
		}
		return false
	}, "the agent sends an event "+kind)
	return found
}
