package redisstore

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/recent"
)

// Orphan does what Create does before it writes the task.
func (s *Store) Orphan(ctx context.Context, d taskstore.Draft) (procfleet.TaskID, error) {
	m := &maker{store: s, draft: &d, nonce: "a dispatcher that died"}
	n, _, err := m.number(ctx)
	return n.TaskID(), err
}

// Delay runs Create and calls meanwhile once, before the task's head is sent.
func (s *Store) Delay(ctx context.Context, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error) {
	var once sync.Once
	s.client.AddHook(beforeCreate{fn: func(context.Context) { once.Do(meanwhile) }})
	return s.Create(ctx, d)
}

// LoseCreation has every attempt to write a task's head run and its answer be lost.
func (s *Store) LoseCreation() {
	s.client.AddHook(losingAnswers{})
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

// SetPatience changes [Options.Patience]; no call may be under way.
func (s *Store) SetPatience(d time.Duration) { s.opt.Patience = d }

// Passing reports whether an error of the server leads to
// [taskstore.ErrUnavailable] instead of being final.
func Passing(err error) bool { return classify(err) != faultPermanent }

// Cut says after which step a reporter dies.
type Cut int

// The steps of a report that names other processes than the one before.
const (
	AfterTouch Cut = iota
	AfterWrite
)

// ReportAndDie does what Report does, up to a step.
func (s *Store) ReportAndDie(ctx context.Context, reports []catalog.Report, cut Cut) error {
	changed, _, err := s.write(ctx, newest(reports), "")
	if err != nil {
		return err
	}
	flux := byIndex(changed)
	if err := s.run(ctx, flux.calls(func(part *indexPart) *call { return part.touch(s, newToken()) })...); err != nil || cut == AfterTouch {
		return err
	}
	_, _, err = s.write(ctx, changed, "touched")
	return err
}

// NamespaceKey is the common beginning of the keys of a namespace.
func (s *Store) NamespaceKey(namespace string) string { return s.keys.namespace(namespace).base }

// Member is how the index has a process.
func Member(p catalog.Process) string { return member(p.Name, p.Host) }

// BusinessKey is the common beginning of the keys of a business.
func (s *Store) BusinessKey(b catalog.Business) string { return s.keys.business(b).base }

// LoseWrite lets the next script that changes templates or a topology run and
// its answer be lost; meanwhile is called before the store notices.
func (s *Store) LoseWrite(meanwhile func()) {
	s.client.AddHook(&losingAnswer{meanwhile: meanwhile, of: []any{changeTemplatesScript.Hash(), setTopologyScript.Hash()}})
}

// LoseAnswers lets the next script that answers what it changed run and its
// answer be lost.
func (s *Store) LoseAnswers() {
	s.client.AddHook(&losingAnswer{meanwhile: func() {}, of: []any{
		recordScript.Hash(), registerScript.Hash(), unregisterScript.Hash(), liftScript.Hash(),
	}})
}

// LoseChanges does so with the next script that tells what has become of
// templates.
func (s *Store) LoseChanges(meanwhile func()) {
	s.client.AddHook(&losingAnswer{meanwhile: meanwhile, of: []any{changesScript.Hash()}})
}

type losingAnswer struct {
	meanwhile func()
	of        []any // hashes of scripts
	lost      atomic.Bool
}

func (*losingAnswer) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*losingAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *losingAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	isMeant := func(c redis.Cmder) bool { return len(c.Args()) > 1 && slices.Contains(h.of, c.Args()[1]) }
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if !slices.ContainsFunc(cmds, isMeant) || h.lost.Swap(true) {
			return err
		}
		h.meanwhile()
		for _, c := range cmds {
			c.SetErr(io.ErrUnexpectedEOF)
		}
		return io.ErrUnexpectedEOF
	}
}

// BeforePages calls something before each time that templates are read by id.
func (s *Store) BeforePages(call func()) { s.client.AddHook(beforePages(call)) }

type beforePages func()

func (beforePages) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (beforePages) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (call beforePages) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return len(c.Args()) > 1 && c.Args()[1] == templatesScript.Hash() }) {
			call()
		}
		return next(ctx, cmds)
	}
}

// Forget does what happens when nobody has asked for any business for long.
func (s *Store) Forget() { s.caches.Forget(time.Now().Add(recent.For)) }
