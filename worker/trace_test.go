package worker_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/tracecontext"
	"github.com/procfleet/procfleet/worker"
)

const (
	traceID   = "0af7651916cd43dd8448eb211c80319c"
	taskTrace = "00-" + traceID + "-b7ad6b7169203331-01"
)

// traced configures a worker to record spans.
func traced() (*tracetest.InMemoryExporter, func(*worker.Config)) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	return spans, func(c *worker.Config) { c.Tracer, c.AgentTracer = provider.Tracer("worker"), provider.Tracer("agent") }
}

func named(spans *tracetest.InMemoryExporter, name string) (found []tracetest.SpanStub) {
	for _, s := range spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// publishTraced sends results as an agent does whose command had a trace context.
func (e *env) publishTraced(trace string, id procfleet.TaskID, h procfleet.Host, results ...agentproto.Result) {
	e.t.Helper()
	msg := &nats.Msg{Subject: agentproto.ResultSubject("b", 0), Data: e.encode(resultsOf(id, h, results...)), Header: nats.Header{}}
	tracecontext.Inject(tracecontext.FromText(e.t.Context(), trace), msg.Header)
	e.receives(e.sendUntilReceipt(msg))
}

func TestWhatTheSweepPublishesStaysInTheTasksTrace(t *testing.T) {
	t.Parallel()
	spans, edit := traced()
	e := start(t, edit)
	e.agent(host(1), accept)
	task := e.store.create(procfleet.LaneSmall, time.Minute, chunk(procfleet.ActionStart, host(1)))
	e.store.change(task.ID, func(f *fakeTask) { f.task.Trace = taskTrace })
	e.waitState(task.ID, 0, procfleet.StateDelivered)
	for _, name := range []string{"sweep dispatch", "chunk deliver", "host ask"} {
		e.eventually(func() bool { return len(named(spans, name)) > 0 }, "span "+name)
		if got := named(spans, name)[0].SpanContext.TraceID().String(); got != traceID {
			t.Errorf("span %q is in trace %s, want %s", name, got, traceID)
		}
	}
}

func TestInABigTaskOneHostOfAChunkIsTraced(t *testing.T) {
	t.Parallel()
	spans, edit := traced()
	e := start(t, edit)
	for _, h := range hosts(20) {
		e.agent(h, accept)
	}
	task := e.store.create(procfleet.BigLane(0), time.Minute, chunk(procfleet.ActionStart, hosts(40)...)) // half of them without agent
	ref := bus.ChunkRef{Task: task.ID, Lane: task.Lane}
	if _, err := e.Bus.PublishChunks(tracecontext.FromText(t.Context(), taskTrace), []bus.ChunkRef{ref}, "0"); err != nil {
		t.Fatal(err)
	}
	for item := range 20 {
		e.waitState(task.ID, item, procfleet.StateDelivered)
		e.waitState(task.ID, 20+item, procfleet.StateUnreachable)
	}
	e.eventually(func() bool { return len(named(spans, "chunk deliver")) > 0 }, "the delivery ends")
	if n := len(named(spans, "host ask")); n != 1+8 {
		t.Errorf("%d hosts have spans, want the first and 8 that failed", n)
	}
}

func TestFailuresOfHostsThatAreNotFollowedGetBoundedSpans(t *testing.T) {
	t.Parallel()
	const unsampled = "00-" + traceID + "-b7ad6b7169203331-00"
	for _, c := range []struct {
		name, task string
		want       int
	}{{"traced task", taskTrace, 8}, {"task that is not traced", unsampled, 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			spans, edit := traced()
			e := start(t, edit)
			task := e.store.create(procfleet.BigLane(0), time.Minute, chunk(procfleet.ActionStart, hosts(31)...))
			e.store.change(task.ID, func(f *fakeTask) { f.task.Trace, f.task.Dispatched = c.task, true })
			for item := range 30 {
				r := succeeded(item)
				if item%2 == 0 {
					r.Code, r.Reason, r.Message = agentproto.CodeFailed, agentproto.ReasonCommandFailed, "exit status 1"
				}
				r.AcceptedAt = r.FinishedAt.Add(-time.Second)
				e.publishTraced(unsampled, task.ID, host(item+1), r)
			}
			for item := range 30 {
				want := procfleet.StateSucceeded
				if item%2 == 0 {
					want = procfleet.StateFailed
				}
				e.waitState(task.ID, item, want)
			}
			agents := named(spans, "agent operate")
			if len(agents) != c.want {
				t.Errorf("%d spans of agents, want %d", len(agents), c.want)
			}
			for _, s := range agents {
				if s.SpanContext.TraceID().String() != traceID || s.EndTime.Sub(s.StartTime) != time.Second {
					t.Errorf("span %v from %v to %v", s.SpanContext, s.StartTime, s.EndTime)
				}
			}
		})
	}
}

func TestResultsInAnswersHaveSpans(t *testing.T) {
	t.Parallel()
	spans, edit := traced()
	e := start(t, edit)
	for _, h := range hosts(20) {
		e.agent(h, func(_ int, c *agentproto.Command) *agentproto.Reply {
			r := succeeded(c.Items[0].Item)
			r.AcceptedAt = r.FinishedAt.Add(-time.Second)
			if r.Item > 5 {
				r.Code, r.Reason, r.Message = agentproto.CodeFailed, agentproto.ReasonCommandFailed, "exit status 1"
			}
			return &agentproto.Reply{Items: []agentproto.ReplyItem{{Item: r.Item, Result: &r}}}
		})
	}
	task := e.store.create(procfleet.BigLane(0), time.Minute, chunk(procfleet.ActionStatus, hosts(20)...))
	ref := bus.ChunkRef{Task: task.ID, Lane: task.Lane}
	if _, err := e.Bus.PublishChunks(tracecontext.FromText(t.Context(), taskTrace), []bus.ChunkRef{ref}, "0"); err != nil {
		t.Fatal(err)
	}
	e.waitState(task.ID, 0, procfleet.StateSucceeded)
	e.waitState(task.ID, 19, procfleet.StateFailed)
	e.eventually(func() bool { return len(named(spans, "chunk deliver")) > 0 }, "the delivery ends")
	for _, name := range []string{"host ask", "agent operate"} {
		if n := len(named(spans, name)); n != 1+8 {
			t.Errorf("%d spans %q, want those of the first host and of 8 that failed", n, name)
		}
	}
	for _, s := range named(spans, "agent operate") {
		if s.SpanContext.TraceID().String() != traceID || s.EndTime.Sub(s.StartTime) != time.Second {
			t.Errorf("span %v from %v to %v", s.SpanContext, s.StartTime, s.EndTime)
		}
	}
}
