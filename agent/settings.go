package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
)

const (
	settingsInterval = 10 * time.Minute // between questions, give or take a fifth
	// firstSettingsRetry is the pause after a question without an answer; it
	// doubles up to settingsInterval.
	firstSettingsRetry = 2 * time.Second
	// spreadQuestions is how long at most an agent waits when all are told at
	// once that settings changed.
	spreadQuestions = 2 * time.Second
)

// settingsKeeper learns what the server wants of this host and hands it to the
// engine. A copy in the data folder holds while nobody answers, also after a
// restart.
type settingsKeeper struct {
	conn    *nats.Conn
	workers *requester
	self    identity
	clock   *clock
	engine  engine
	file    string
	log     logrus.FieldLogger

	due  chan struct{} // holds a token when a question is to be asked now
	soon atomic.Bool   // a question of those that are spread is to be asked
	kept []byte        // what is in the file; empty if nothing is known to be
}

func newSettingsKeeper(cfg *Config, data *folder, workers *requester, self identity, e engine) *settingsKeeper {
	return &settingsKeeper{
		conn: cfg.Conn, workers: workers, self: self, clock: workers.clock, engine: e, file: filepath.Join(data.dir, "settings.json"), log: cfg.Log,
		due: make(chan struct{}, 1),
	}
}

// changed has a question follow at once. It does not block.
func (k *settingsKeeper) changed() { signal(k.due) }

// changedForAll has a question follow within spreadQuestions. Nobody signs this
// word: said without end, it has one timer at a time.
func (k *settingsKeeper) changedForAll() {
	if !k.soon.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(rand.N(spreadQuestions), func() {
		k.soon.Store(false) // what is said from now on may be newer than the answer
		k.changed()
	})
}

// begin applies what is kept, or what is answered if the connection is there
// and a worker replies within [agentproto.RequestTimeout].
func (k *settingsKeeper) begin(ctx context.Context) {
	k.recall()
	if k.conn.IsConnected() && k.ask(ctx) {
		return
	}
	k.changed()
}

// run asks until ctx ends: when it is told to, and at intervals.
func (k *settingsKeeper) run(ctx context.Context) {
	told, err := k.conn.Subscribe(agentproto.SettingsChangedAll, func(*nats.Msg) { k.changedForAll() })
	if err != nil {
		k.log.WithError(err).Warn("settings subscription failed, polling only")
	} else {
		defer told.Unsubscribe()
	}
	retry := firstSettingsRetry
	wait := settingsInterval
	for {
		timer := time.NewTimer(wait - wait/5 + rand.N(wait*2/5))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.due:
			timer.Stop()
		case <-timer.C:
		}
		switch {
		case !k.conn.IsConnected(): // a new connection asks by itself
			wait = settingsInterval
		case k.ask(ctx):
			wait, retry = settingsInterval, firstSettingsRetry
		default:
			wait, retry = retry, min(2*retry, settingsInterval)
		}
	}
}

// ask asks once, and reports whether the answer says what holds.
func (k *settingsKeeper) ask(ctx context.Context) bool {
	question := agentproto.SettingsAsk{Header: newHeader(agentproto.TypeSettingsAsk), Host: k.self.host, Instance: k.self.instance}
	var reply agentproto.SettingsReply
	took, err := k.workers.request(ctx, agentproto.SettingsSubject(k.self.cloud), &question, agentproto.TypeSettingsReply, &reply)
	if err != nil {
		k.log.WithError(err).Debug("settings request failed")
		return false
	}
	if !reply.ServerTime.IsZero() {
		k.clock.observe(took.sent, took.answered, reply.ServerTime)
	}
	if reply.Error != "" {
		k.log.WithField("reason", reply.Error).Debug("settings unavailable, keeping the previous ones")
		return false
	}
	k.engine.Apply(reply.Settings)
	k.keep(reply.Settings)
	return true
}

// keptSettings are the copy in the data folder.
type keptSettings struct {
	Format   int                 `json:"format"`
	Settings agentproto.Settings `json:"settings"`
}

const settingsFormat = 1

// keep writes down what holds, if it is not what is written there already.
func (k *settingsKeeper) keep(s agentproto.Settings) {
	text, err := json.Marshal(keptSettings{Format: settingsFormat, Settings: s})
	_, gone := os.Stat(k.file) // somebody may have deleted the data folder
	if err == nil && gone == nil && string(text) == string(k.kept) {
		return
	}
	if err == nil {
		err = replaceDurably(k.file, string(text))
	}
	if err != nil {
		k.log.WithError(err).Warn("settings not written to the journal")
		return
	}
	k.kept = text
}

// recall applies what is written down, if anything is.
func (k *settingsKeeper) recall() {
	text, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var kept keptSettings
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err == nil && kept.Format != settingsFormat {
		err = fmt.Errorf("format %d is unknown", kept.Format)
	}
	if err != nil {
		k.log.WithError(err).WithField("file", k.file).Warn("stored settings unreadable, none in force")
		return
	}
	k.kept = text
	k.engine.Apply(kept.Settings)
}
