package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// startReporter opens the journal of a folder and runs a reporter, which sends
// what the journal has unacknowledged. The returned function stops both.
func startReporter(t *testing.T, dir string, keys *fleetkey.Host, workers fakeWorkers) (r *reporter, stop func()) {
	t.Helper()
	ledger, recovered, err := journal.Open(dir, testenv.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	r = newReporter(workers.requester(t, keys), ledger, func(string) {})
	for _, op := range recovered.Unacknowledged {
		r.add(op.ID, op.Lane, op.Trace)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	return r, sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := ledger.Close(); err != nil {
			t.Error(err)
		}
	})
}

// finish journals finished operations and queues their results.
func finish(t *testing.T, r *reporter, lane, task string, items ...int) {
	t.Helper()
	ops := make([]journal.Op, len(items))
	for i, item := range items {
		ops[i] = journal.Op{
			ID: journal.ID{Task: task, Item: item}, Lane: lane, Fence: 1, Action: agentproto.ActionStart, Spec: agentproto.Spec{Key: fmt.Sprint(task, item)},
		}
	}
	if _, err := r.journal.Receive(ops); err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		if err := r.journal.Finish(op.ID, agentproto.Result{Item: op.Item, Reason: agentproto.ReasonSucceeded, Message: "success"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, op := range ops {
		r.add(op.ID, lane, "")
	}
}

// decodeResults decodes a request with results, and returns its lane.
func decodeResults(t *testing.T, msg *nats.Msg) (lane string, m agentproto.Results) {
	t.Helper()
	if err := agentproto.Decode(msg.Data, agentproto.TypeResults, &m); err != nil {
		t.Error(err)
	}
	return strings.Split(msg.Subject, ".")[2], m
}

func itemsOf(m *agentproto.Results) (items []int) {
	for _, r := range m.Results {
		items = append(items, r.Item)
	}
	return items
}

func TestRepliesThatNoWorkerSignedMakeTheAgentForgetNothing(t *testing.T) {
	t.Parallel()
	keys := testenv.NewRing(t).Host("0:10.0.0.1")
	for name, forge := range forgeries(t, keys) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				r, stop := startReporter(t, dir, keys, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
					sent++
					_, m := decodeResults(t, msg)
					return forge(m.ID, *storedAll(&m)), nil
				})
				finish(t, r, "s", "task", 0)
				time.Sleep(10 * time.Minute)
				stop()
				if r.waiting() != 1 || sent < 10 {
					t.Errorf("%d results wait after %d requests", r.waiting(), sent)
				}

				sent = 0
				r, stop = startReporter(t, dir, keys, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
					sent++
					_, m := decodeResults(t, msg)
					return signedReply(t, keys, storedAll(&m), m.ID), nil
				})
				synctest.Wait()
				stop()
				if r.waiting() != 0 || sent != 1 {
					t.Errorf("%d results wait after %d genuine receipts", r.waiting(), sent)
				}
				r, stop = startReporter(t, dir, keys, nil)
				stop()
				if r.waiting() != 0 {
					t.Error("the acknowledgement is not in the journal")
				}
			})
		})
	}
}

func TestAcknowledgementOfAStreamIsNoReceiptForAHostWithoutKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, stop := startReporter(t, t.TempDir(), nil, func(context.Context, *nats.Msg) (*nats.Msg, error) {
			return &nats.Msg{Data: []byte(`{"stream":"PROCFLEET_RESULTS","seq":1}`)}, nil
		})
		defer stop()
		finish(t, r, "s", "task", 0)
		time.Sleep(time.Minute)
		if r.waiting() != 1 {
			t.Error("the result is forgotten")
		}
	})
}

func TestResultsThatTheReceiptDoesNotNameAreSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent [][]int
		ready := make(chan struct{})
		log, logged := logtest.NewNullLogger()
		r, stop := startReporter(t, t.TempDir(), nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
			<-ready
			_, m := decodeResults(t, msg)
			sent = append(sent, itemsOf(&m))
			receipt := storedAll(&m)
			if len(sent) < 3 { // 0 alone, then all that were added meanwhile
				receipt.Stored, receipt.Rejected = []int{0, 1, 3, 99}, []int{2}
			}
			return signedReply(t, nil, receipt, m.ID), nil
		})
		r.log = log
		finish(t, r, "s", "task", 0)
		synctest.Wait()
		finish(t, r, "s", "task", 1, 2, 3, 4, 5)
		close(ready)
		synctest.Wait()
		stop()
		if diff := cmp.Diff([][]int{{0}, {1, 2, 3, 4, 5}, {4, 5}}, sent); diff != "" {
			t.Errorf("sent:\n%s", diff)
		}
		if r.waiting() != 0 {
			t.Errorf("%d results wait", r.waiting())
		}
		warnings := slices.DeleteFunc(logged.AllEntries(), func(e *logrus.Entry) bool { return e.Level > logrus.WarnLevel })
		if len(warnings) != 2 || warnings[1].Data["task"] != "task" || fmt.Sprint(warnings[1].Data["items"]) != "[2]" {
			t.Errorf("logged %v", warnings)
		}
	})
}

// While a busy receipt requests a pause, the agent sends no results of this lane, also not after a
// reconnection. It sends results of other lanes.
func TestBusyWorkersGetNothingForAsLongAsTheyAsk(t *testing.T) {
	t.Parallel()
	for asked, want := range map[time.Duration]time.Duration{
		20 * time.Second: 20 * time.Second,
		time.Hour:        agentproto.MaxRetryAfter,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var mu sync.Mutex
				sent := map[string][]time.Duration{} // when, by lane
				r, stop := startReporter(t, dir, nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
					lane, m := decodeResults(t, msg)
					mu.Lock()
					defer mu.Unlock()
					sent[lane] = append(sent[lane], time.Since(begun))
					receipt := storedAll(&m)
					if lane == "b" && len(sent[lane]) == 1 {
						receipt.Task, receipt.RetryAfterMS = "", asked.Milliseconds() // nothing was stored, whatever it names
					}
					if lane == "b" && len(sent[lane]) == 2 && len(m.Results) != 2 {
						t.Errorf("%d results were sent again, want 2", len(m.Results))
					}
					return signedReply(t, nil, receipt, m.ID), nil
				})
				defer stop()
				finish(t, r, "b", "big", 0)
				synctest.Wait()
				finish(t, r, "s", "small", 0)
				time.Sleep(time.Second)
				r.retryNow()
				finish(t, r, "b", "big", 1)
				time.Sleep(time.Hour)
				synctest.Wait()
				if diff := cmp.Diff(map[string][]time.Duration{"b": {0, want}, "s": {0}}, sent); diff != "" {
					t.Errorf("requests:\n%s", diff)
				}
				if r.waiting() != 0 {
					t.Errorf("%d results wait", r.waiting())
				}
			})
		})
	}
}

func TestResultsThatTheStoreRefusesDoNotDelayOthersOfTheirLane(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var mu sync.Mutex
		sent := map[string][]time.Duration{} // when, by task
		r, stop := startReporter(t, dir, nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
			_, m := decodeResults(t, msg)
			mu.Lock()
			defer mu.Unlock()
			sent[m.Task] = append(sent[m.Task], time.Since(begun))
			receipt := storedAll(&m)
			if m.Task == "bad" && len(sent["bad"]) < 3 {
				receipt.Stored, receipt.RetryAfterMS = nil, time.Minute.Milliseconds()
			}
			return signedReply(t, nil, receipt, m.ID), nil
		})
		defer stop()
		finish(t, r, "s", "bad", 0)
		synctest.Wait()
		time.Sleep(time.Second)
		finish(t, r, "s", "good", 0)
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := map[string][]time.Duration{"bad": {0, time.Minute, 2 * time.Minute}, "good": {time.Second}}
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("requests:\n%s", diff)
		}
		if r.waiting() != 0 {
			t.Errorf("%d results wait", r.waiting())
		}
	})
}

func TestBusyLaneDoesNotDelayAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const tasks = 50
		begun := time.Now()
		var mu sync.Mutex
		inFlight, stored := map[string]int{}, map[string]int{}
		r, stop := startReporter(t, t.TempDir(), nil, func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
			lane, m := decodeResults(t, msg)
			mu.Lock()
			if inFlight[lane]++; inFlight[lane] > 1 {
				t.Errorf("%d requests in flight in lane %s", inFlight[lane], lane)
			}
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				inFlight[lane]--
			}()
			if lane == "b" { // no worker replies
				<-ctx.Done()
				return nil, ctx.Err()
			}
			time.Sleep(time.Millisecond) // another request would overlap
			mu.Lock()
			defer mu.Unlock()
			stored[lane] += len(m.Results)
			return signedReply(t, nil, storedAll(&m), m.ID), nil
		})
		defer stop()
		for i := range tasks {
			finish(t, r, "b", fmt.Sprint("big", i), 0)
			finish(t, r, "s", fmt.Sprint("small", i), 0)
		}
		time.Sleep(time.Until(begun.Add(agentproto.RequestTimeout / 2)))
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff(map[string]int{"s": tasks}, stored); diff != "" {
			t.Errorf("stored before the first big request ended:\n%s", diff)
		}
	})
}

func TestFailedRequestsAreRepeatedMoreAndMoreRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent []time.Time
		away := true
		r, stop := startReporter(t, t.TempDir(), nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
			sent = append(sent, time.Now())
			if away {
				return nil, nats.ErrNoResponders
			}
			_, m := decodeResults(t, msg)
			return signedReply(t, nil, storedAll(&m), m.ID), nil
		})
		defer stop()
		finish(t, r, "s", "task", 0)
		time.Sleep(time.Hour)
		synctest.Wait()
		if gap := sent[1].Sub(sent[0]); gap > firstRetry {
			t.Errorf("the first pause is %v", gap)
		}
		for i := len(sent) / 2; i < len(sent)-1; i++ {
			if gap := sent[i+1].Sub(sent[i]); gap < lastRetry/2 || gap > lastRetry {
				t.Fatalf("pause %d is %v", i, gap)
			}
		}
		away = false
		r.retryNow() // the connection is back
		now := time.Now()
		synctest.Wait()
		if r.waiting() != 0 || !sent[len(sent)-1].Equal(now) {
			t.Error("a new connection does not end the pause")
		}
	})
}

func TestStopSendsWhatWaitsDespiteAPause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply func(id string) (*nats.Msg, error)
		left  int
	}{
		"after failures": {func(string) (*nats.Msg, error) { return nil, nats.ErrNoResponders }, 0},
		"but not one that a worker asked for": {func(id string) (*nats.Msg, error) {
			return signedReply(t, nil, &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), RetryAfterMS: 60_000}, id), nil
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				away := true
				workers := fakeWorkers(func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
					_, m := decodeResults(t, msg)
					if away {
						return c.reply(m.ID)
					}
					return signedReply(t, nil, storedAll(&m), m.ID), nil
				})
				ledger, _, err := journal.Open(dir, testenv.Log(t))
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := ledger.Close(); err != nil {
						t.Error(err)
					}
				}()
				r := newReporter(workers.requester(t, nil), ledger, func(string) {})
				finish(t, r, "s", "task", 0)
				withTimeout(t.Context(), 90*time.Second, r.run)
				away = false
				withTimeout(t.Context(), flushTimeout, r.flush)
				if r.waiting() != c.left {
					t.Errorf("%d results wait, want %d", r.waiting(), c.left)
				}
			})
		})
	}
}

func TestEventsWaitForAGenuineReceipt(t *testing.T) {
	t.Parallel()
	keys := testenv.NewRing(t).Host("0:10.0.0.1")
	replies := forgeries(t, keys)
	replies["no reply"] = func(string, agentproto.Receipt) *nats.Msg { return nil }
	for name, forge := range replies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent := map[string]int{}
				var genuine atomic.Bool
				e := eventsOf(t, keys, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
					_, id, _ := agentproto.Peek(msg.Data)
					sent[id]++
					receipt := agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), Event: id}
					if genuine.Load() {
						return signedReply(t, keys, &receipt, id), nil
					}
					if reply := forge(id, receipt); reply != nil {
						return reply, nil
					}
					return nil, errors.New("no reply")
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go e.run(ctx)
				e.emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: "a", Message: "gone"})
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if times := slices.Collect(maps.Values(sent)); e.pending() != 1 || len(times) != 1 || times[0] < 10 {
					t.Errorf("%d events wait, sent %v times", e.pending(), times)
				}
				genuine.Store(true)
				time.Sleep(lastRetry)
				synctest.Wait()
				if e.pending() != 0 {
					t.Error("a genuine receipt does not count")
				}
			})
		})
	}
}

func TestAnEventThatTheStreamRefusesDoesNotDelayTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		sent := map[string][]time.Duration{} // when, by key
		e := eventsOf(t, nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
			var event agentproto.Event
			if err := agentproto.Decode(msg.Data, agentproto.TypeEvent, &event); err != nil {
				t.Error(err)
			}
			sent[event.Key] = append(sent[event.Key], time.Since(begun))
			receipt := &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), Event: event.ID}
			if event.Key == "bad" && len(sent["bad"]) < 3 {
				receipt.RetryAfterMS = time.Minute.Milliseconds()
			}
			return signedReply(t, nil, receipt, event.ID), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go e.run(ctx)
		e.emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: "bad", Message: "gone"})
		e.emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: "good", Message: "gone"})
		time.Sleep(time.Hour)
		synctest.Wait()
		want := map[string][]time.Duration{"bad": {0, time.Minute, 2 * time.Minute}, "good": {0}}
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("requests:\n%s", diff)
		}
		if e.pending() != 0 || e.delayed != 0 {
			t.Errorf("%d events wait, %d are delayed", e.pending(), e.delayed)
		}
	})
}

func TestBusyWorkersGetNoEventsForAsLongAsTheyAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const asked = 40 * time.Second
		begun := time.Now()
		var sent []time.Duration
		e := eventsOf(t, nil, func(_ context.Context, msg *nats.Msg) (*nats.Msg, error) {
			_, id, _ := agentproto.Peek(msg.Data)
			receipt := &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), Event: id}
			if sent = append(sent, time.Since(begun)); len(sent) == 1 {
				receipt = &agentproto.Receipt{Header: newHeader(agentproto.TypeReceipt), RetryAfterMS: asked.Milliseconds()}
			}
			return signedReply(t, nil, receipt, id), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go e.run(ctx)
		e.emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: "a", Message: "gone"})
		time.Sleep(time.Second)
		e.retries.end()
		e.emit(agentproto.Event{Kind: agentproto.EventGaveUp, Key: "b", Message: "gone"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]time.Duration{0, asked, asked}, sent); diff != "" {
			t.Errorf("requests:\n%s", diff)
		}
	})
}
