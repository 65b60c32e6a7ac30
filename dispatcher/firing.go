package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/taskstore"
)

const (
	// fireEvery is the interval at which each dispatcher looks for due times of schedules.
	fireEvery = 2 * time.Second
	// fireUntil is the time after which a due time without a task counts as missed.
	fireUntil = time.Minute
)

// firing creates the tasks of schedules. All dispatchers do; the idempotency key of a time lets only
// one task exist.
type firing struct {
	api    *api
	decode func(*dialect.Request) (procfleet.Submission, error)
}

func newFiring(a *api, dialects []dialect.Dialect) *firing {
	f := &firing{api: a}
	for i := range dialects {
		for _, family := range dialects[i].Reached() {
			for _, call := range family.Calls {
				if accept, ok := call.Endpoint.(dialect.Accept); ok && call.Name == nativeCall {
					f.decode = accept.Decode
				}
			}
		}
	}
	return f
}

// run looks for due times until ctx ends.
func (f *firing) run(ctx context.Context) {
	ticker := time.NewTicker(fireEvery)
	defer ticker.Stop()
	failing := false
	for {
		err := f.round(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			f.api.log.WithError(err).Warn("schedules not read, retrying")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// round handles all due times. It returns an error if the store is unavailable.
func (f *firing) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.api.cfg.Timeouts.Query)
	defer cancel()
	all, err := f.api.store.Schedules(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	now, err := f.api.store.Now(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		s := &all[i]
		slot, due := s.Due(now)
		if slot.IsZero() {
			continue
		}
		if err := f.fire(ctx, s, slot, due); err != nil {
			f.log(s, slot).WithError(err).Warn("scheduled task not created, retrying")
		}
	}
	return nil
}

func (f *firing) log(s *catalog.Schedule, slot time.Time) logrus.FieldLogger {
	return f.api.log.WithFields(logrus.Fields{"schedule": s.Name, "namespace": s.Namespace, "time": slot.UTC().Format(time.RFC3339)})
}

// fire handles one time of a schedule: it creates the task, or records why there is none. After an
// error the next round handles the time again.
func (f *firing) fire(ctx context.Context, s *catalog.Schedule, slot, due time.Time) error {
	run := catalog.ScheduleRun{Slot: slot}
	limit := due.Add(fireUntil)
	last, err := f.last(ctx, s)
	if err != nil {
		return err
	}
	switch {
	case last == nil:
	case !last.State.Done() && s.Overlap == procfleet.OverlapQueue:
		return nil
	case !last.State.Done() && s.Overlap == procfleet.OverlapReplace:
		reason := fmt.Sprintf("replaced by schedule %s", s.Name)
		if _, err := f.api.store.Cancel(ctx, last.ID, procfleet.CancelDrain, reason, taskstore.AnySeq); err != nil && !errors.Is(err, taskstore.ErrDone) {
			return fmt.Errorf("cancel task %s: %w", last.ID, err)
		}
	case !last.State.Done():
		run.Problem = fmt.Sprintf("task %s of the last time had not ended", last.ID)
	case s.Overlap == procfleet.OverlapQueue && last.FinishedAt.After(due):
		limit = last.FinishedAt.Add(fireUntil)
	}
	if s.Missed == procfleet.MissedRunOnce {
		limit = time.Time{}
	}
	if run.Problem == "" {
		if run.Task, run.Problem, err = f.submit(ctx, s, slot, limit); err != nil {
			return err
		}
		f.api.cfg.Reached(PointFired)
	}
	if run.Problem != "" {
		f.log(s, slot).WithField("problem", run.Problem).Warn("no task at a time of a schedule")
	}
	return f.api.store.RecordRun(ctx, s.Namespace, s.Name, run)
}

// last returns the task of the last time of a schedule; nil without one, or if it has expired.
func (f *firing) last(ctx context.Context, s *catalog.Schedule) (*procfleet.Task, error) {
	if s.Last.Task == "" {
		return nil, nil //nolint:nilnil // there may be none
	}
	task, err := f.api.store.Task(ctx, s.Last.Task)
	if errors.Is(err, taskstore.ErrNotFound) {
		return nil, nil //nolint:nilnil // it has expired
	}
	return &task, err
}

// submit creates the task of a time, or finds the one that another dispatcher created, or returns the
// problem that prevents it.
func (f *firing) submit(ctx context.Context, s *catalog.Schedule, slot, limit time.Time) (task procfleet.TaskID, problem string, err error) {
	begin := time.Now()
	who, err := f.api.authenticator.Stored(s.Application, s.User)
	var sub procfleet.Submission
	if err == nil {
		sub, err = f.decode(&dialect.Request{Body: s.Task, MaxItems: f.api.cfg.Limits.Items})
	}
	if err == nil {
		err = who.MaySubmit(&sub)
	}
	var made procfleet.Task
	if err == nil {
		id := newRequestID()
		made, err = f.api.accept(ctx, &acceptance{
			call: nativeCall, who: &who, start: begin, log: f.log(s, slot).WithField("request", id),
			terms: terms{
				key:  "\x00schedule/" + s.Namespace + "/" + s.Name + "/" + strconv.FormatInt(slot.Unix(), 10),
				sole: true, notAfter: limit, origin: procfleet.Origin{User: s.User, Request: id},
			},
		}, &sub)
	}
	refusal, refused := errors.AsType[*dialect.Error](err)
	switch {
	case err == nil:
		return made.ID, "", nil
	case errors.Is(err, taskstore.ErrExpired):
		return "", "missed: no dispatcher created the task in time", nil
	case refused && !passing(refusal.Kind):
		return "", refusal.Error(), nil
	}
	return "", "", err
}

// passing reports whether a repetition of a refused request may succeed.
func passing(k dialect.Kind) bool {
	return k == dialect.Internal || k == dialect.Unavailable || k == dialect.StoreFull || k == dialect.OutcomeUnknown
}
