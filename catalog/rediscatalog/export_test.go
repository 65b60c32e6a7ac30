package rediscatalog

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/recent"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// SetPatience changes the patience of the connection; no call may be under way.
func (s *Catalog) SetPatience(d time.Duration) { s.conn.SetPatience(d) }

// Cut is the step after which a reporter dies.
type Cut int

// The steps of a report whose processes differ from those in the previous report.
const (
	AfterTouch Cut = iota
	AfterWrite
)

// ReportAndDie executes the steps of Report up to a step.
func (s *Catalog) ReportAndDie(ctx context.Context, reports []catalog.Report, cut Cut) error {
	changed, _, err := s.write(ctx, newest(reports), "")
	if err != nil {
		return err
	}
	flux := byIndex(changed)
	if err := s.conn.Run(ctx, flux.calls(func(part *indexPart) *redisconn.Call { return part.touch(s, redisconn.NewToken()) })...); err != nil || cut == AfterTouch {
		return err
	}
	_, _, err = s.write(ctx, changed, "touched")
	return err
}

// NamespaceKey is the common beginning of the keys of a namespace.
func (s *Catalog) NamespaceKey(namespace string) string { return s.keys.namespace(namespace).base }

// Member returns the member of the index for a process.
func Member(p catalog.Process) string { return member(p.Name, p.Host) }

// BusinessKey is the common beginning of the keys of a business.
func (s *Catalog) BusinessKey(b catalog.Business) string { return s.keys.business(b).base }

// LoseWrite drops the reply to the next script that changes templates or a topology, after the script ran.
// It calls meanwhile before the catalog receives the error.
func (s *Catalog) LoseWrite(meanwhile func()) {
	redistest.LoseReply(s.conn.Client(), meanwhile, changeTemplatesScript, setTopologyScript)
}

// LoseAnswers drops the reply to the next script that returns its changes, after the script ran.
func (s *Catalog) LoseAnswers() {
	redistest.LoseReply(s.conn.Client(), func() {}, registerScript, unregisterScript, liftScript)
}

// LoseChanges drops the reply to the next script that returns the changes of templates.
func (s *Catalog) LoseChanges(meanwhile func()) {
	redistest.LoseReply(s.conn.Client(), meanwhile, changesScript)
}

// BeforePages calls a function before each read of templates by id.
func (s *Catalog) BeforePages(call func()) { s.conn.Client().AddHook(beforePages(call)) }

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

// Forget drops all cached views, as happens when no business was searched for a long time.
func (s *Catalog) Forget() { s.caches.Forget(time.Now().Add(recent.For)) }
