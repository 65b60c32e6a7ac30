package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/datafile"
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
	*requester

	conn   *nats.Conn
	engine Engine
	file   string

	due    chan struct{} // holds a token when a request is due
	soon   atomic.Bool   // true while the timer of changedForAll runs
	stored []byte        // content of file; empty if unknown
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
	if k.conn.IsConnected() && k.fetch(ctx) {
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
		select {
		case <-ctx.Done():
			return
		case <-k.due:
		case <-time.After(wait - wait/5 + rand.N(wait*2/5)):
		}
		switch {
		case !k.conn.IsConnected(): // the announcer calls changed once connected
			wait = settingsInterval
		case k.fetch(ctx):
			wait, retry = settingsInterval, firstSettingsRetry
		default:
			wait, retry = retry, min(2*retry, settingsInterval)
		}
	}
}

// fetch requests the settings once, applies and stores them. It reports whether it succeeded.
func (k *settingsClient) fetch(ctx context.Context) bool {
	request := agentproto.SettingsRequest{Header: newHeader(agentproto.TypeSettingsRequest), Host: k.host, Instance: k.instance}
	var reply agentproto.SettingsReply
	took, err := k.request(ctx, agentproto.SettingsSubject(k.cloud), &request, agentproto.TypeSettingsReply, &reply)
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
	if err == nil && missing == nil && bytes.Equal(text, k.stored) {
		return
	}
	if err == nil {
		err = datafile.Replace(k.file, text)
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
		err = fmt.Errorf("it has format %d, this agent reads format %d: the servers' settings will replace it", stored.Format, settingsFormat)
	}
	if err != nil {
		k.log.WithError(err).WithField("file", k.file).Warn("stored settings unreadable, none in force")
		return
	}
	k.stored = text
	k.engine.Apply(stored.Settings)
}
