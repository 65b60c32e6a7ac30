//go:build linux

package pressure

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/internal/testenv"
)

// bombs returns messages of a host's agent that are as large as NATS accepts, cheap
// to create and expensive to decode.
func bombs(kind, list, task, host string) [][]byte {
	const room = 1000 << 10
	begin := fmt.Sprintf(`{"type":"procfleet.agent.v1.%s","id":"i","task":%q,"host":%q,"instance":"i","number":1,`, kind, task, host)
	many := strings.TrimSuffix(strings.Repeat("{},", room/3), ",")
	var all [][]byte
	for _, rest := range []string{
		`"` + list + `":[` + many + `]}`,
		`"` + list + `":` + strings.Repeat("[", room),
		`"` + list + `":[{"item":1e999999999,"code":` + strings.Repeat("9", room) + `}]}`,
		`"` + list + `":[{"item":99999999999,"message":"` + strings.Repeat(`\u0000`, room/6) + `"}]}`,
		`"unknown":` + strings.Repeat(`{"a":`, room/5),
		`"unknown":"` + strings.Repeat("\xff", room) + `"}`,
	} {
		all = append(all, []byte(begin+rest))
	}
	return all
}

// TestExpensiveAgentMessages sends replies, results and process reports with
// endless lists, huge numbers and deep nesting. They must cost a worker neither its
// memory limit nor the tasks of other hosts. The worker must drop and count
// messages that it cannot decode.
func TestExpensiveAgentMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, dispatcherURL := r.role("dispatcher", "--submissions=false")
	worker, metrics := r.role("worker")
	r.simulate(100)

	const rounds = 4
	counted := 0
	const nobodys = "GSETASK:20260101000000:000001"
	for _, kind := range []struct{ subject, kind, list string }{
		{"procfleet.result.s.0", "results", "results"},
		{"procfleet.result.b.0", "results", "results"},
		{"procfleet.presence.0", "presence", "labels"},
		{"procfleet.processes.0", "processes", "processes"},
		{"procfleet.settings.0", "settings", "freezes"},
	} {
		for _, bomb := range bombs(kind.kind, kind.list, nobodys, "0:10.201.0.1") {
			for range rounds {
				if err := r.nats.Conn.Publish(kind.subject, bomb); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.nats.Conn.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if kind.kind == "results" { // before NATS disconnects the worker as a slow consumer and drops them
			counted += rounds
			testenv.Eventually(t, patience, func() bool {
				return counter(t, metrics, "procfleet_worker_dropped_result_messages_total", `reason="not_understood"`) >= counted
			}, "what was dropped is counted")
		}
	}

	// Each of these hosts sends such a reply to every command.
	hosts := 0
	for n := range bombs("reply", "items", "", "") {
		for range 8 {
			host := fmt.Sprintf("10.201.0.%d", hosts)
			hosts++
			_, err := r.nats.Conn.Subscribe("procfleet.agent.0."+strings.ReplaceAll(host, ".", "-"), func(m *nats.Msg) {
				_ = m.Respond(bombs("reply", "items", nobodys, "0:"+host)[n]) // a command without a reply is sent again
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	id := accepts(t, dispatcherURL, bytes.ReplaceAll(operation(hosts, 0), []byte("0:10.0."), []byte("0:10.201.")))
	honest := accepts(t, dispatcherURL, operation(100, 0))
	succeeds(t, dispatcherURL, honest, 100)
	testenv.Eventually(t, patience, func() bool { return readTask(t, dispatcherURL, id).State == "finished" }, "the task ends")
	if end := readTask(t, dispatcherURL, id); end.Counts["unreachable"] != hosts {
		t.Errorf("%d hosts with invalid replies: %v", hosts, end.Counts)
	}
	if most := worker.PeakMemory(t); most > containerMemory {
		t.Errorf("peak memory %d MiB, limit %d MiB", most>>20, containerMemory>>20)
	} else {
		t.Logf("peak memory %d MiB", most>>20)
	}
}
