//go:build linux

package pressure

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// agentMessage is a kind of message that agents send to workers on a separate subject,
// padded to the maximum size of NATS.
type agentMessage struct {
	subject, kind, counter string
}

func (s *agentMessage) encode(t *testing.T, number int) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"type": "procfleet.agent.v1." + s.kind, "host": fmt.Sprintf("0:10.200.%d.%d", number>>8, number&255),
		"instance": "i", "number": number + 1, "filler": strings.Repeat("x", 900<<10),
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestAgentMessagesWhileTheStoreHangs floods a worker with agent messages of
// maximum size while Redis does not reply and keeps its connections open. The
// worker must drop and count messages above its limits, stay within its memory, and
// continue when Redis replies again.
func TestAgentMessagesWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, dispatcherURL := r.role("dispatcher", "--submissions=false")
	worker, metrics := r.role("worker")
	r.simulate(100)

	kinds := []agentMessage{
		{"procfleet.presence.0", "presence", "procfleet_worker_announcements_total"},
		{"procfleet.processes.0", "processes", "procfleet_worker_process_reports_total"},
		{"procfleet.settings.0", "settings", "procfleet_worker_settings_questions_total"},
	}
	inbox := r.nats.Conn.NewInbox()
	var offered int64
	r.redis.Freeze(t)
	const rounds = 500
	for n := range rounds {
		for _, kind := range kinds {
			data := kind.encode(t, n)
			if err := r.nats.Conn.PublishRequest(kind.subject, inbox, data); err != nil {
				t.Fatal(err)
			}
			offered += int64(len(data))
		}
		if err := r.nats.Conn.Flush(); err != nil { // the server must not consider the test a slow consumer
			t.Fatal(err)
		}
	}
	for _, kind := range kinds {
		testenv.Eventually(t, patience, func() bool { return counter(t, metrics, kind.counter, `outcome="overflowed"`) > 0 }, kind.counter+" counts what was dropped")
	}
	r.redis.Thaw(t)

	var id task
	testenv.Eventually(t, patience, func() bool {
		a := post(dispatcherURL+"/v1/tasks", operation(100, 0))
		return a.status == 201 && json.Unmarshal(a.body, &id) == nil
	}, "a task is accepted")
	succeeds(t, dispatcherURL, id.ID, 100)
	for _, kind := range kinds { // no inbox is blocked
		before := counter(t, metrics, kind.counter, "")
		testenv.Eventually(t, patience, func() bool {
			return r.nats.Conn.PublishRequest(kind.subject, inbox, kind.encode(t, rounds)) == nil && counter(t, metrics, kind.counter, "") > before
		}, kind.counter+" counts again")
	}
	fits(t, worker, offered)
}
