//go:build linux

package pressure

import (
	"encoding/json"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/internal/testenv"
)

var rampAgents = flag.Int("ramp.agents", 500, "how many agents of TestTheReturnOfRedisIsARamp wait with a result")

// inbox is the maximum number of pending requests of a worker per lane.
const inbox = 16 << 10

// requests counts the requests with results that agents send.
type requests struct {
	mu     sync.Mutex
	byHost map[string]int
	// repeats are the times at which agents sent a result again.
	repeats []time.Time
}

func hearRequests(t *testing.T, conn *nats.Conn) *requests {
	t.Helper()
	r := &requests{byHost: map[string]int{}}
	sub, err := conn.Subscribe("procfleet.result.>", func(m *nats.Msg) {
		var results struct {
			Host string
			Sent time.Time
		}
		if err := json.Unmarshal(m.Data, &results); err != nil {
			t.Errorf("decode results: %v", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.byHost[results.Host]++; r.byHost[results.Host] > 1 {
			r.repeats = append(r.repeats, results.Sent)
		}
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hosts returns the number of hosts that have sent at least n requests.
func (r *requests) hosts(n int) (hosts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sent := range r.byHost {
		if sent >= n {
			hosts++
		}
	}
	return hosts
}

// since returns the number of repeats after a time, and the number in the busiest
// second.
func (r *requests) since(from time.Time) (all, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.repeats, time.Time.Compare)
	begin, _ := slices.BinarySearchFunc(r.repeats, from, time.Time.Compare)
	sent := r.repeats[begin:]
	for first, last := 0, 0; last < len(sent); last++ {
		for sent[last].Sub(sent[first]) >= time.Second {
			first++
		}
		most = max(most, last-first+1)
	}
	return len(sent), most
}

// TestTheReturnOfRedisIsARamp lets each agent of a fleet finish a command while
// Redis hangs. Workers must spread the repeats over many seconds, so that the
// agents do not return at the same time as Redis. Every result must be stored, and
// a worker must have few pending ones.
func TestTheReturnOfRedisIsARamp(t *testing.T) {
	t.Parallel()
	agents := *rampAgents
	r := newRig(t)
	_, dispatcherURL := r.role("dispatcher", "--submissions=false", "--slack", "1h") // no deadline passes during the test
	worker, metrics := r.role("worker")
	r.simulate(agents, "--latency", "15s")
	id := accepts(t, dispatcherURL, operation(agents, 0))
	testenv.Eventually(t, patience, func() bool {
		at := readTask(t, dispatcherURL, id)
		return at.Items == agents && at.Counts["pending"] == 0
	}, "agents have accepted the task")
	heard := hearRequests(t, r.nats.Conn)
	inHand := 0
	until := func(done func() bool, what string) {
		t.Helper()
		testenv.Eventually(t, patience, func() bool {
			inHand = max(inHand, counter(t, metrics, "procfleet_worker_inbox_waiting_messages", `inbox="results`))
			return done()
		}, what)
	}

	r.redis.Freeze(t)
	away := time.Now()
	repeats := 4 // by then an agent waits some seconds before the next
	if testenv.IsLong() {
		repeats = 6
	}
	until(func() bool { return heard.hosts(repeats) >= agents*9/10 }, "agents send their results again and again")
	r.redis.Thaw(t)
	back := time.Now()
	during, _ := heard.since(away)
	put := counter(t, metrics, "procfleet_worker_busy_replies_total", `inbox="results`)
	until(func() bool { return readTask(t, dispatcherURL, id).State == "finished" }, "the task ends")
	took := time.Since(back)
	after, most := heard.since(back)
	t.Logf("Redis hung for %v: %d repeats, %d of them postponed", back.Sub(away).Round(time.Second), during, put)
	t.Logf("Redis back: %d results stored within %v, %d repeats, at most %d in a second; at most %d pending in the worker",
		agents, took.Round(100*time.Millisecond), after, most, inHand)

	if end := readTask(t, dispatcherURL, id); end.Counts["succeeded"] != agents {
		t.Errorf("%v, want %d succeeded", end.Counts, agents)
	}
	if most > agents/2 {
		t.Errorf("%d of %d agents returned within one second", most, agents)
	}
	if put < agents {
		t.Errorf("%d postponements, want at least one for each of %d agents", put, agents)
	}
	if inHand > inbox {
		t.Errorf("%d pending requests in the worker, want at most %d", inHand, inbox)
	}
	bounded(t, "the worker", worker)
}
