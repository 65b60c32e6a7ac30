package agent

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
)

// wishes replies to requests for settings like a worker.
type wishes struct {
	t    *testing.T
	conn *nats.Conn
	sub  *nats.Subscription

	mu    sync.Mutex
	reply agentproto.SettingsReply
	asked int
}

// answerSettings replies to requests for settings with the settings of [wishes.set].
func (h *host) answerSettings() *wishes {
	h.t.Helper()
	w := &wishes{t: h.t, conn: h.conn}
	var err error
	if w.sub, err = h.conn.Subscribe(agentproto.SettingsSubject(0), w.answer); err == nil {
		err = h.conn.Flush()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return w
}

func (w *wishes) answer(m *nats.Msg) {
	var ask agentproto.SettingsRequest
	if err := agentproto.Decode(m.Data, agentproto.TypeSettingsRequest, &ask); err != nil {
		w.t.Errorf("question: %v", err)
		return
	}
	if ask.Host != "0:10.0.0.1" || ask.Instance == "" {
		w.t.Errorf("question %+v", ask)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	reply := w.reply
	reply.Header, reply.ServerTime = newHeader(agentproto.TypeSettingsReply), time.Now()
	data, err := agentproto.Encode(&reply)
	if err != nil {
		w.t.Error(err)
		return
	}
	_ = m.Respond(data) // an agent without a reply repeats the request
}

func (w *wishes) set(s agentproto.Settings) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reply = agentproto.SettingsReply{Settings: s}
}

func (w *wishes) fail(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reply = agentproto.SettingsReply{Error: why}
}

func (w *wishes) questions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

// silence ends the replies.
func (w *wishes) silence() {
	w.t.Helper()
	if err := w.sub.Unsubscribe(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.conn.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

func frozen(namespace string) agentproto.Settings {
	return agentproto.Settings{Freezes: []agentproto.Freeze{{Namespace: namespace, Until: time.Date(2126, 1, 2, 3, 4, 5, 0, time.UTC)}}}
}

// latest returns the engine's settings, and the number of settings that applied when it adopted the
// processes of an earlier agent.
func (e *fakeEngine) latest() (s agentproto.Settings, atStart int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.applied) > 0 {
		s = e.applied[len(e.applied)-1]
	}
	return s, e.atStart
}

func (h *host) waitFor(want agentproto.Settings) {
	h.t.Helper()
	testenv.Eventually(h.t, patience, func() bool {
		got, _ := h.engine.latest()
		return reflect.DeepEqual(got, want)
	}, "the settings hold")
}

func (h *host) tellSettingsChanged(subject string) {
	h.t.Helper()
	data, err := agentproto.Encode(&agentproto.SettingsChanged{Header: newHeader(agentproto.TypeSettingsChanged)})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.conn.Publish(subject, data); err != nil {
		h.t.Fatal(err)
	}
}

func TestSettingsHoldBeforeAnythingIsTakenOver(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	w := h.answerSettings()
	w.set(frozen("shop"))
	h.start(nil)
	if got, atStart := h.engine.latest(); atStart != 1 || !reflect.DeepEqual(got, frozen("shop")) {
		t.Errorf("%d settings held at the start, the latest are %+v", atStart, got)
	}
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	w.silence()
	h.start(nil) // no reply: the stored settings apply
	if got, atStart := h.engine.latest(); atStart != 1 || !reflect.DeepEqual(got, frozen("shop")) {
		t.Errorf("without an answer %d settings held at the start, the latest are %+v", atStart, got)
	}
}

func TestSettingsAreWrittenDownAgainWhenSomebodyDeletedThem(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	w := h.answerSettings()
	w.set(frozen("shop"))
	h.start(nil)
	file := filepath.Join(h.cfg.DataDir, "settings.json")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.tellSettingsChanged(h.cfg.subject())
	testenv.Eventually(t, patience, func() bool {
		_, err := os.Stat(file)
		return err == nil
	}, "they are there again")
}

func TestSettingsAreAskedForWhenTheyChanged(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	w := h.answerSettings()
	h.start(nil)
	w.set(frozen("own"))
	h.tellSettingsChanged(h.cfg.subject())
	h.waitFor(frozen("own"))
	w.set(frozen("all"))
	h.tellSettingsChanged(agentproto.SettingsChangedAll)
	h.waitFor(frozen("all"))
	w.set(frozen("connection"))
	if err := h.cfg.Conn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	h.waitFor(frozen("connection"))
	w.set(agentproto.Settings{})
	h.tellSettingsChanged(h.cfg.subject())
	h.waitFor(agentproto.Settings{})
}

func TestSettingsHoldOnWhileTheServerKnowsNone(t *testing.T) {
	t.Parallel()
	h, _ := newHost(t)
	w := h.answerSettings()
	w.set(frozen("shop"))
	h.start(nil)
	w.fail("the store is away")
	before := w.questions()
	h.tellSettingsChanged(h.cfg.subject())
	testenv.Eventually(t, patience, func() bool { return w.questions() > before }, "the agent asks")
	if got, _ := h.engine.latest(); !reflect.DeepEqual(got, frozen("shop")) {
		t.Errorf("settings %+v", got)
	}
	w.set(frozen("bar"))
	h.waitFor(frozen("bar")) // it repeats the request without a notification
}

func TestSettingsThatCannotBeReadDoNotKeepTheAgentFromWork(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct{ text, warning string }{
		"half a file":    {`{"format":1,"sett`, "unexpected end of JSON input"},
		"another format": {`{"format":99}`, "it has format 99, this agent reads format 1: the servers' settings will replace it"},
		"nothing":        {"", "unexpected end of JSON input"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h, _ := newHost(t)
			if err := os.WriteFile(filepath.Join(h.cfg.DataDir, "settings.json"), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			log, logged := logtest.NewNullLogger()
			h.cfg.Log = log
			h.start(nil)
			if !slices.ContainsFunc(logged.AllEntries(), func(e *logrus.Entry) bool {
				err, _ := e.Data[logrus.ErrorKey].(error)
				return err != nil && err.Error() == tt.warning
			}) {
				t.Errorf("no warning: %s", tt.warning)
			}
			if _, atStart := h.engine.latest(); atStart != 0 {
				t.Errorf("%d settings held at the start", atStart)
			}
			w := h.answerSettings()
			w.set(frozen("shop"))
			h.waitFor(frozen("shop"))
		})
	}
}

// Many notifications of changed settings cause one request. If each had a timer of its own, any sender
// with the right to publish them could exhaust the agent's memory.
func TestAFloodOfTheWordThatSettingsChangedIsOneQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &settingsClient{due: make(chan struct{}, 1)}
		questions := 0
		go func() {
			for range k.due {
				questions++
			}
		}()
		for round := range 3 {
			for range 1000 {
				k.changedForAll()
			}
			time.Sleep(requestSpread)
			synctest.Wait()
			if questions != round+1 {
				t.Errorf("%d questions after %d floods", questions, round+1)
			}
		}
		close(k.due)
	})
}
