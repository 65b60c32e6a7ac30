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
	settingsInterval = 10 * time.Minute // interval of requests, ± 20 %
	// firstSettingsRetry is the pause after a request without a reply. The pause doubles up
	// to settingsInterval.
	firstSettingsRetry = 2 * time.Second
	// requestSpread is the maximum random delay of a request after a notification to all
	// agents.
	requestSpread = 2 * time.Second
)

// settingsClient requests the settings of this host from the servers and applies them to the
// engine. While no worker replies, even after a restart, a copy in the data folder applies.
type settingsClient struct {
	conn    *nats.Conn
	workers *requester
	self    identity
	clock   *clock
	engine  engine
	file    string
	log     logrus.FieldLogger

	due    chan struct{} // holds a token when a request is due
	soon   atomic.Bool   // true while the timer of changedForAll runs
	stored []byte        // content of file; empty if unknown
}

func newSettingsClient(cfg *Config, data *folder, workers *requester, self identity, e engine) *settingsClient {
	return &settingsClient{
		conn: cfg.Conn, workers: workers, self: self, clock: workers.clock, engine: e, file: filepath.Join(data.dir, "settings.json"), log: cfg.Log,
		due: make(chan struct{}, 1),
	}
}

// changed schedules an immediate request. It does not block.
func (k *settingsClient) changed() { signal(k.due) }

// changedForAll schedules a request after a random delay of at most requestSpread. The
// notification is not signed; only one timer runs at a time, however often it is sent.
func (k *settingsClient) changedForAll() {
	if !k.soon.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(rand.N(requestSpread), func() {
		k.soon.Store(false) // later notifications may be newer than the reply
		k.changed()
	})
}

// begin applies the stored settings, and the servers' settings if a worker replies within
// [agentproto.RequestTimeout].
func (k *settingsClient) begin(ctx context.Context) {
	k.load()
	if k.conn.IsConnected() && k.request(ctx) {
		return
	}
	k.changed()
}

// run requests the settings after notifications and at intervals, until ctx ends.
func (k *settingsClient) run(ctx context.Context) {
	sub, err := k.conn.Subscribe(agentproto.SettingsChangedAll, func(*nats.Msg) { k.changedForAll() })
	if err != nil {
		k.log.WithError(err).Warn("settings subscription failed, polling only")
	} else {
		defer sub.Unsubscribe()
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
		case !k.conn.IsConnected(): // the announcer calls changed once connected
			wait = settingsInterval
		case k.request(ctx):
			wait, retry = settingsInterval, firstSettingsRetry
		default:
			wait, retry = retry, min(2*retry, settingsInterval)
		}
	}
}

// request requests the settings once, applies and stores them. It reports whether it succeeded.
func (k *settingsClient) request(ctx context.Context) bool {
	request := agentproto.SettingsRequest{Header: newHeader(agentproto.TypeSettingsRequest), Host: k.self.host, Instance: k.self.instance}
	var reply agentproto.SettingsReply
	took, err := k.workers.request(ctx, agentproto.SettingsSubject(k.self.cloud), &request, agentproto.TypeSettingsReply, &reply)
	if err != nil {
		k.log.WithError(err).Debug("settings request failed")
		return false
	}
	if !reply.ServerTime.IsZero() {
		k.clock.observe(took, reply.ServerTime)
	}
	if reply.Error != "" {
		k.log.WithField("reason", reply.Error).Debug("settings unavailable, keeping the previous ones")
		return false
	}
	k.engine.Apply(reply.Settings)
	k.store(reply.Settings)
	return true
}

// storedSettings is the content of the settings file in the data folder.
type storedSettings struct {
	Format   int                 `json:"format"`
	Settings agentproto.Settings `json:"settings"`
}

const settingsFormat = 1

// store writes the settings to the file unless the file already has them.
func (k *settingsClient) store(s agentproto.Settings) {
	text, err := json.Marshal(storedSettings{Format: settingsFormat, Settings: s})
	_, missing := os.Stat(k.file) // the data folder may have been deleted
	if err == nil && missing == nil && string(text) == string(k.stored) {
		return
	}
	if err == nil {
		err = replaceDurably(k.file, string(text))
	}
	if err != nil {
		k.log.WithError(err).Warn("settings not stored")
		return
	}
	k.stored = text
}

func (k *settingsClient) load() {
	text, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var stored storedSettings
	if err == nil {
		err = json.Unmarshal(text, &stored)
	}
	if err == nil && stored.Format != settingsFormat {
		err = fmt.Errorf("format %d is unknown", stored.Format)
	}
	if err != nil {
		k.log.WithError(err).WithField("file", k.file).Warn("stored settings unreadable, none in force")
		return
	}
	k.stored = text
	k.engine.Apply(stored.Settings)
}
