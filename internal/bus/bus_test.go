package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/tracecontext"
)

var sampleTask = procfleet.Number(1_700_000_000_000_123).TaskID()

func refs(n int, lane procfleet.Lane) []bus.ChunkRef {
	out := make([]bus.ChunkRef, n)
	for i := range out {
		out[i] = bus.ChunkRef{Task: sampleTask, Chunk: i, Lane: lane, Cloud: procfleet.CloudArea(i % 3)}
	}
	return out
}

func streamInfo(t *testing.T, js jetstream.JetStream, name string) *jetstream.StreamInfo {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo()
}

func fetch(t *testing.T, c jetstream.Consumer, n int) []jetstream.Msg {
	t.Helper()
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var out []jetstream.Msg
	for msg := range batch.Messages() {
		out = append(out, msg)
	}
	if err := batch.Error(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestChunksArriveInTheirLaneAndLeaveWhenAcknowledged(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	for _, lane := range procfleet.Lanes() {
		want := refs(4, lane)
		sequences, err := env.Bus.PublishChunks(t.Context(), want, "0/"+string(lane))
		if err != nil {
			t.Fatal(err)
		}
		consumer, err := env.Bus.DeliverConsumer(t.Context(), lane)
		if err != nil {
			t.Fatal(err)
		}
		for i, msg := range fetch(t, consumer, len(want)) {
			got, err := bus.DecodeChunkRef(msg.Data())
			if err != nil || got != want[i] {
				t.Errorf("lane %s: got %+v, %v; want %+v", lane, got, err, want[i])
			}
			if queued := queuedAt(t, env, sequences...); slices.Index(queued, true) != i {
				t.Errorf("before the acknowledgement of %d: queued %v", i, queued)
			}
			if err := msg.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
			if queued := queuedAt(t, env, sequences[i]); queued[0] {
				t.Errorf("after the acknowledgement: queued %v", queued)
			}
		}
	}
}

func queuedAt(t *testing.T, env *testenv.NATS, sequences ...uint64) []bool {
	t.Helper()
	queued, err := env.Bus.Queued(t.Context(), sequences)
	if err != nil || len(queued) != len(sequences) {
		t.Fatalf("positions %v: queued %v, %v", sequences, queued, err)
	}
	return queued
}

func TestNothingIsQueuedAtPositionZeroOrBeyondTheEnd(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	if queued := queuedAt(t, env, 0, 1, 1<<40); slices.Contains(queued, true) {
		t.Errorf("queued %v", queued)
	}
}

func TestWhatLeftTheFrontOfTheQueueIsLookedForInOneRequest(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	sequences, err := env.Bus.PublishChunks(t.Context(), refs(100, procfleet.LaneSmall), "0")
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := env.Bus.DeliverConsumer(t.Context(), procfleet.LaneSmall)
	if err != nil {
		t.Fatal(err)
	}
	for _, msg := range fetch(t, consumer, len(sequences)-1) {
		if err := msg.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := env.JS.Conn().Stats().OutMsgs
	if queued := queuedAt(t, env, sequences...); slices.Index(queued, true) != len(sequences)-1 {
		t.Errorf("queued %v, want only the last", queued)
	}
	if requests := env.JS.Conn().Stats().OutMsgs - before; requests != 2 {
		t.Errorf("%d requests, want one for the stream and one for the chunk that is queued", requests)
	}
}

func TestARepeatOfTheSameRoundIsOneMessage(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	publish := func(round string) []uint64 {
		t.Helper()
		seqs, err := env.Bus.PublishChunks(t.Context(), refs(3, procfleet.LaneSmall), round)
		if err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	first, again, next := publish("0"), publish("0"), publish("1")
	for i := range first {
		if first[i] != again[i] {
			t.Errorf("repeat of chunk %d went to position %d, first was %d", i, again[i], first[i])
		}
		if first[i] == next[i] {
			t.Errorf("chunk %d was not published again in the next round", i)
		}
	}
	if n := streamInfo(t, env.JS, bus.StreamOps).State.Msgs; n != 6 {
		t.Errorf("%d messages in the stream, want 6", n)
	}
}

func TestTheTraceTravelsWithTheChunk(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true})
	ctx := trace.ContextWithSpanContext(t.Context(), span)
	if _, err := env.Bus.PublishChunks(ctx, refs(1, procfleet.LaneSmall), "0"); err != nil {
		t.Fatal(err)
	}
	consumer, err := env.Bus.DeliverConsumer(t.Context(), procfleet.LaneSmall)
	if err != nil {
		t.Fatal(err)
	}
	msg := fetch(t, consumer, 1)[0]
	got := trace.SpanContextFromContext(tracecontext.Extract(t.Context(), msg.Headers()))
	if !got.Equal(span) {
		t.Errorf("got trace %v, want %v", got, span)
	}
}

func TestAFullStreamRefusesAndKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	resizeOps(t, env.JS, 4<<10)
	var err error
	for round := 0; err == nil && round < 100; round++ {
		_, err = env.Bus.PublishChunks(t.Context(), refs(4, procfleet.LaneSmall), fmt.Sprint(round))
	}
	if !errors.Is(err, bus.ErrFull) || errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("error %v, want ErrFull", err)
	}
	info := streamInfo(t, env.JS, bus.StreamOps)
	if info.State.FirstSeq != 1 {
		t.Errorf("the stream begins at %d: old messages were dropped", info.State.FirstSeq)
	}
}

// resizeOps sets the size of StreamOps, as an operator may.
func resizeOps(t *testing.T, js jetstream.JetStream, bytes int64) {
	t.Helper()
	cfg := streamInfo(t, js, bus.StreamOps).Config
	cfg.MaxBytes = bytes
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutAServerPublishingFailsAsAway(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	env.Server.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := env.Bus.PublishChunks(ctx, refs(2, procfleet.LaneSmall), "0"); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("publish chunks: %v, want ErrUnavailable", err)
	}
	if err := env.Bus.PublishFinished(ctx, &bus.TaskFinished{Event: "x"})(); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("publish event: %v, want ErrUnavailable", err)
	}
	if err := bus.Ensure(ctx, env.JS, bus.Options{}); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("ensure: %v, want ErrUnavailable", err)
	}
	if _, err := env.Bus.Queued(ctx, []uint64{1}); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("read the stream: %v, want ErrUnavailable", err)
	}
}

func TestWithoutStreamsPublishingFailsAsAway(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	if err := env.JS.DeleteStream(t.Context(), bus.StreamOps); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Bus.PublishChunks(t.Context(), refs(1, procfleet.LaneSmall), "0"); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("publish chunks: %v, want ErrUnavailable", err)
	}
}

func TestTheEndOfATaskIsToldOnce(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	event := bus.FinishedEvent(procfleet.Task{
		ID: sampleTask, State: procfleet.TaskFinished,
		Counts: procfleet.Counts{procfleet.StateSucceeded: 3},
	})
	for range 2 {
		if err := env.Bus.PublishFinished(t.Context(), &event)(); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := env.JS.Stream(t.Context(), bus.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 1 {
		t.Fatalf("%d events in the stream, want 1", n)
	}
	msg, err := stream.GetLastMsgForSubject(t.Context(), "procfleet.task.finished")
	if err != nil {
		t.Fatal(err)
	}
	var got bus.TaskFinished
	if err := json.Unmarshal(msg.Data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Event != string(sampleTask)+"/finished" || got.Counts[procfleet.StateSucceeded] != 3 {
		t.Errorf("event %+v", got)
	}
}

func TestEnsureFromManyProcessesAtOnce(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	for _, name := range []string{bus.StreamOps, bus.StreamEvents, bus.StreamHostEvents, bus.StreamAudit} {
		if err := env.JS.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			js, err := bus.JetStream(testenv.Connect(t, env.URL))
			if err == nil {
				err = bus.Ensure(t.Context(), js, bus.Options{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := streamInfo(t, env.JS, bus.StreamOps).State.Consumers; n != len(procfleet.Lanes()) {
		t.Errorf("%d consumers, want %d", n, len(procfleet.Lanes()))
	}
}

func TestEnsureKeepsMessagesAndTunedLimits(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	resizeOps(t, env.JS, 64<<20)
	if _, err := env.Bus.PublishChunks(t.Context(), refs(1, procfleet.LaneSmall), "0"); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), env.JS, bus.Options{}); err != nil {
		t.Fatal(err)
	}
	info := streamInfo(t, env.JS, bus.StreamOps)
	if info.State.Msgs != 1 || info.Config.MaxBytes != 64<<20 {
		t.Errorf("%d messages, at most %d bytes; want 1 and 64 MiB", info.State.Msgs, info.Config.MaxBytes)
	}
}

// A stream smaller than a record of the audit log would acknowledge the record and drop it.
func TestEnsureRefusesAStreamTooSmallForAuditRecords(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	cfg := streamInfo(t, env.JS, bus.StreamAudit).Config
	cfg.MaxBytes = 8 << 10
	if _, err := env.JS.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	err := bus.Ensure(t.Context(), env.JS, bus.Options{})
	if err == nil || errors.Is(err, bus.ErrUnavailable) || !strings.Contains(err.Error(), "PROCFLEET_AUDIT: its size (max_bytes) is 8192 bytes") {
		t.Errorf("%v", err)
	}
}

func TestEnsureFitsIntoASmallServer(t *testing.T) {
	t.Parallel()
	server, err := natsembed.Start(natsembed.Config{StoreDir: t.TempDir(), Listen: "127.0.0.1:0", MaxStore: 100 << 20, Log: testenv.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	js, err := bus.JetStream(testenv.Connect(t, server.ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Ensure(t.Context(), js, bus.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.New(js).PublishChunks(t.Context(), refs(1, procfleet.LaneSmall), "0"); err != nil {
		t.Fatal(err)
	}
}

// startLimited starts a server that limits our account.
func startLimited(t *testing.T, limits string) jetstream.JetStream {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf(`
		listen: "127.0.0.1:-1", no_auth_user: us
		jetstream { store_dir: %q, max_file_store: 16GB }
		accounts { OURS { jetstream { %s }, users [{ user: us, password: us }] } }`, dir, limits)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	js, err := bus.JetStream(testenv.Connect(t, s.ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestEnsureSaysForWhichStreamAnAccountHasNoRoomAndWhatItNeeds(t *testing.T) {
	t.Parallel()
	for limits, stream := range map[string]string{
		"max_file: 9MB, max_streams: 7, max_consumers: 9":       "", // the least
		"max_bytes_required: true, disk_max_stream_bytes: 16MB": "",
		"max_file: 4MB":    bus.StreamEvents,
		"max_streams: 2":   bus.StreamHostEvents,
		"max_consumers: 8": bus.StreamOps,
	} {
		t.Run(limits, func(t *testing.T) {
			t.Parallel()
			err := bus.Ensure(t.Context(), startLimited(t, limits), bus.Options{})
			switch {
			case stream == "" && err != nil:
				t.Error(err)
			case stream != "" && (err == nil || errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrFull) ||
				!strings.Contains(err.Error(), stream) || !strings.Contains(err.Error(), "must allow 7 streams")):
				t.Errorf("error %v, want one that names %s and says what is needed", err, stream)
			}
		})
	}
}

func TestEnsureRefusesAForeignStream(t *testing.T) {
	t.Parallel()
	env := testenv.StartNATS(t)
	if err := env.JS.DeleteStream(t.Context(), bus.StreamOps); err != nil {
		t.Fatal(err)
	}
	_, err := env.JS.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: bus.StreamOps, Subjects: []string{"elsewhere"}, Storage: jetstream.MemoryStorage,
	})
	if err != nil {
		t.Fatal(err)
	}
	err = bus.Ensure(t.Context(), env.JS, bus.Options{})
	if err == nil || !strings.Contains(err.Error(), bus.StreamOps) || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("error %v, want one that names the stream and says what to do", err)
	}
}

func TestResultLane(t *testing.T) {
	t.Parallel()
	for _, lane := range procfleet.Lanes() {
		want := "b"
		if lane == procfleet.LaneSmall {
			want = "s"
		}
		if got := bus.ResultLane(lane); got != want {
			t.Errorf("lane %s: got %s, want %s", lane, got, want)
		}
	}
}

func TestMalformedChunkReferencesAreRefused(t *testing.T) {
	t.Parallel()
	for _, data := range []string{
		``, `null`, `[]`, `{"task":1}`, `{}`,
		`{"task":"nonsense","chunk":0,"lane":"s","cloud":0}`,
		`{"task":"` + string(sampleTask) + `","chunk":-1,"lane":"s","cloud":0}`,
		`{"task":"` + string(sampleTask) + `","chunk":0,"lane":"x","cloud":0}`,
		`{"task":"` + string(sampleTask) + `","chunk":0,"lane":"s","cloud":-2}`,
		`{"task":"` + strings.Repeat("x", 2000) + `"}`,
	} {
		if ref, err := bus.DecodeChunkRef([]byte(data)); err == nil {
			t.Errorf("%.60s was read as %+v", data, ref)
		}
	}
}

func FuzzDecodeChunkRef(f *testing.F) {
	f.Add([]byte(`{"task":"` + string(sampleTask) + `","chunk":3,"lane":"b2","cloud":7}`))
	f.Add([]byte(`{"chunk":1e99}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ref, err := bus.DecodeChunkRef(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(ref)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := bus.DecodeChunkRef(again); err != nil || got != ref {
			t.Errorf("%+v became %+v, %v", ref, got, err)
		}
	})
}
