package boltstore

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/procfleet/procfleet/taskstore"
)

// groupLimit is the maximum number of changes in one transaction. It bounds the wait of
// the first of them.
const groupLimit = 128

// job is one change. The writer may call run again if the transaction was rolled back
// because of another job. If run returns an error for which clean is true, it must have
// written nothing.
type job struct {
	run    func(t *tx) error
	err    error
	answer chan error
}

// update makes the writer run fn, and returns when the effect of fn is on disk. If ctx
// ends first, fn takes effect completely or not at all, and may still be running when
// update returns. Therefore fn must own all data that it reads.
func update[T any](ctx context.Context, s *Store, fn func(t *tx) (T, error)) (T, error) {
	var v, none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	j := &job{
		run: func(t *tx) (err error) {
			if err := ctx.Err(); err != nil {
				return err // the caller has returned
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
		return none, ctx.Err() // the writer may still be writing v
	}
}

// change is update for changes without a result.
func change(ctx context.Context, s *Store, fn func(t *tx) error) error {
	_, err := update(ctx, s, func(t *tx) (struct{}, error) { return struct{}{}, fn(t) })
	return err
}

// write runs jobs until the store is closed.
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

// waiting returns first and the jobs that are waiting now, at most groupLimit.
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

// commit runs a group of jobs in one transaction. If a job fails, it receives its
// error, and the transaction is repeated with the other jobs.
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
