package redisstore

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// BigDraft returns a draft of few items that is written in more than one call per MiB.
func BigDraft(mib int) taskstore.Draft {
	d := storetest.Draft(2 * mib * procfleet.ChunkItems)
	for i := range d.Chunks {
		d.Chunks[i].Items[0].Target.Label = strings.Repeat("x", 512<<10)
	}
	return d
}

// Orphan executes the steps of Create before the write of the task.
func (s *Store) Orphan(ctx context.Context, d taskstore.Draft) (procfleet.TaskID, error) {
	m := &maker{store: s, draft: &d, nonce: "a dispatcher that died"}
	n, _, err := m.number(ctx)
	return n.TaskID(), err
}

// Delay runs Create and calls meanwhile once, before the task's head is sent.
func (s *Store) Delay(ctx context.Context, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error) {
	var once sync.Once
	s.conn.Client().AddHook(beforeCreate{fn: func(context.Context) { once.Do(meanwhile) }})
	return s.Create(ctx, d)
}

// LoseCreation drops the reply to every write of a task's head.
func (s *Store) LoseCreation() {
	s.conn.Client().AddHook(losingAnswers{})
}

type losingAnswers struct{ beforeCreate }

func (losingAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return slices.Contains(c.Args(), any(createScript.Hash())) }) {
			return err
		}
		for _, c := range cmds {
			c.SetErr(io.ErrUnexpectedEOF)
		}
		return io.ErrUnexpectedEOF
	}
}

// SetPatience changes the patience of the connection; no call may be under way.
func (s *Store) SetPatience(d time.Duration) { s.conn.SetPatience(d) }

// LoseAnswers drops the reply to the next script that records results, after the script ran.
func (s *Store) LoseAnswers() {
	redistest.LoseReply(s.conn.Client(), func() {}, recordScript)
}
