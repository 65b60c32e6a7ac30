package boltdb

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
// because of another job. If run returns an error for which [DB.clean] is true, it must have
// written nothing.
type job struct {
	run    func(t *Tx) error
	err    error
	answer chan error
}

// Update makes the writer run fn, and returns when the effect of fn is on disk. If ctx
// ends first, fn takes effect completely or not at all, and may still be running when
// Update returns. Therefore fn must own all data that it reads.
func Update[T any](ctx context.Context, db *DB, fn func(t *Tx) (T, error)) (T, error) {
	var v, none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	j := &job{
		run: func(t *Tx) (err error) {
			if err := ctx.Err(); err != nil {
				return err // the caller has returned
			}
			v, err = fn(t)
			return err
		},
		answer: make(chan error, 1),
	}
	select {
	case db.jobs <- j:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-db.done:
		return none, fmt.Errorf("%w: the store is closed", taskstore.ErrUnavailable)
	}
	select {
	case err := <-j.answer:
		if err != nil {
			return none, db.outward(err)
		}
		return v, nil
	case <-ctx.Done():
		return none, ctx.Err() // the writer may still be writing v
	}
}

// Change is Update for changes without a result.
func Change(ctx context.Context, db *DB, fn func(t *Tx) error) error {
	_, err := Update(ctx, db, func(t *Tx) (struct{}, error) { return struct{}{}, fn(t) })
	return err
}

// write runs jobs until the store is closed.
func (db *DB) write() {
	for {
		select {
		case j := <-db.jobs:
			db.commit(db.waiting(j))
		case <-db.done:
			return
		}
	}
}

// waiting returns first and the jobs that are waiting now, at most groupLimit.
func (db *DB) waiting(first *job) []*job {
	group := []*job{first}
	for len(group) < groupLimit {
		select {
		case j := <-db.jobs:
			group = append(group, j)
		default:
			return group
		}
	}
	return group
}

// commit runs a group of jobs in one transaction. If a job fails, it receives its
// error, and the transaction is repeated with the other jobs.
func (db *DB) commit(group []*job) {
	for {
		failed := -1
		err := db.bolt.Update(func(b *bbolt.Tx) error {
			for i, j := range group {
				if j.err = j.run(&Tx{Tx: b, Now: db.Now()}); j.err != nil && !db.clean(j.err) {
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
