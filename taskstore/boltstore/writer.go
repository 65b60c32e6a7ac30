package boltstore

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/procfleet/procfleet/taskstore"
)

// groupLimit bounds the changes of one commit, and with them how long the
// first of them waits.
const groupLimit = 128

// job is one change. run may be called again if its transaction was rolled
// back on account of another job; it writes nothing if it answers with an
// error that clean knows.
type job struct {
	run    func(t *tx) error
	err    error
	answer chan error
}

// update has the writer run fn and returns when its effect is on disk. If ctx
// ends first, fn has its whole effect or none, and may still be at it when
// update returns: it must own whatever it reads.
func update[T any](ctx context.Context, s *Store, fn func(t *tx) (T, error)) (T, error) {
	var v, none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	j := &job{
		run: func(t *tx) (err error) {
			if err := ctx.Err(); err != nil {
				return err // its caller has returned
			}
			v, err = fn(t)
			return err
		},
		answer: make(chan error, 1),
	}
	select {
	case s.jobs <- j:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-s.done:
		return none, fmt.Errorf("%w: the store is closed", taskstore.ErrUnavailable)
	}
	select {
	case err := <-j.answer:
		if err != nil {
			return none, outward(err)
		}
		return v, nil
	case <-ctx.Done():
		return none, ctx.Err() // v is the writer's
	}
}

// change is update for changes that answer nothing.
func change(ctx context.Context, s *Store, fn func(t *tx) error) error {
	_, err := update(ctx, s, func(t *tx) (struct{}, error) { return struct{}{}, fn(t) })
	return err
}

// write commits groups of jobs until the store is closed.
func (s *Store) write() {
	for {
		select {
		case j := <-s.jobs:
			s.commit(s.waiting(j))
		case <-s.done:
			return
		}
	}
}

// waiting returns first and the jobs that wait by now.
func (s *Store) waiting(first *job) []*job {
	group := []*job{first}
	for len(group) < groupLimit {
		select {
		case j := <-s.jobs:
			group = append(group, j)
		default:
			return group
		}
	}
	return group
}

// commit runs the group in one transaction. A job that fails gets its error, and
// the transaction is repeated with the others.
func (s *Store) commit(group []*job) {
	for {
		failed := -1
		err := s.db.Update(func(b *bbolt.Tx) error {
			for i, j := range group {
				if j.err = j.run(&tx{Tx: b, now: s.now()}); j.err != nil && !clean(j.err) {
					failed = i
					return j.err
				}
			}
			return nil
		})
		if failed < 0 {
			for _, j := range group {
				if err != nil {
					j.err = err
				}
				j.answer <- j.err
			}
			return
		}
		group[failed].answer <- err
		group = slices.Delete(group, failed, failed+1)
	}
}
