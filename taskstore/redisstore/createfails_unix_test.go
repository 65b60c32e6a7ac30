//go:build unix

package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// The error of a creation contains the id of the task only if the request may have reached the server.
func TestACreationThatFailsNamesTheTaskOnlyIfItMayExist(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "key"} {
		d := storetest.Draft(3)
		d.IdempotencyKey = key
		server := redistest.Start(t)
		open := func() *Store {
			s, err := Open(t.Context(), redisconn.Options{URL: server.URL(), Patience: 30 * time.Second, Log: testenv.Log(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
		// fails calls trouble between the allotment of the number and the write of the task.
		fails := func(s *Store, when string, named bool, trouble func()) procfleet.TaskID {
			m := &maker{store: s, draft: &d, nonce: when}
			n, now, err := m.number(t.Context())
			if err != nil {
				t.Fatalf("key %q, %s: %v", key, when, err)
			}
			trouble()
			s.SetPatience(500 * time.Millisecond)
			task := m.task(n, now)
			_, err = m.write(t.Context(), &task)
			for !named && errors.Is(err, context.DeadlineExceeded) { // it ended within an attempt, which proves nothing
				m.uncertain = procfleet.Task{}
				_, err = m.write(t.Context(), &task)
			}
			if !errors.Is(err, taskstore.ErrUnavailable) || (m.uncertain.ID != "") != named {
				t.Errorf("key %q, %s: task %q, %v", key, when, m.uncertain.ID, err)
			}
			return m.uncertain.ID
		}
		fails(open(), "Redis frozen", true, func() { server.Freeze(t) })
		server.Thaw(t)

		d.IdempotencyKey += " lost"
		lost := open()
		id := fails(lost, "answers lost", true, lost.LoseCreation)
		if rejected, err := open().Reject(t.Context(), id, "answer lost"); err != nil || !rejected {
			t.Errorf("key %q: task %s, whose answer was lost, is not rejected: %v", key, id, err)
		}

		d.IdempotencyKey += " stopped"
		stopped := open()
		fails(stopped, "Redis stopped", false, func() { server.Stop(t) })
		if task, _, err := stopped.Create(t.Context(), d); !errors.Is(err, taskstore.ErrUnavailable) || task.ID != "" {
			t.Errorf("key %q, Redis stopped before: task %q, %v", key, task.ID, err)
		}
	}
}
