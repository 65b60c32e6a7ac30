package storetest_test

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/boltstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// harness opens boltstores, each wrapped by wrap. It violates two more rules: reopening loses all data, and
// an orphaned key is never written.
func harness(wrap wrap) storetest.Harness {
	var ahead atomic.Int64
	open := func(tb testing.TB) taskstore.Store {
		tb.Helper()
		s, err := boltstore.Open(filepath.Join(tb.TempDir(), "tasks.db"), boltdb.Options{
			Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, NoSync: true,
		})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := s.Close(); err != nil {
				tb.Error(err)
			}
		})
		return wrap(s)
	}
	return storetest.Harness{
		Open:    open,
		Reopen:  func(tb testing.TB, _ taskstore.Store) taskstore.Store { tb.Helper(); return open(tb) },
		Advance: func(_ testing.TB, _ taskstore.Store, d time.Duration) { ahead.Add(int64(d)) },
		Orphan: func(testing.TB, taskstore.Store, taskstore.Draft) procfleet.TaskID {
			return procfleet.Number(1e15).TaskID()
		},
		Delay: func(tb testing.TB, s taskstore.Store, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error) {
			tb.Helper()
			task, created, err := s.Create(tb.Context(), d)
			meanwhile()
			return task, created, errors.Join(err, s.Settle(tb.Context(), taskstore.Visit{Task: task.ID}))
		},
		Patience: 50 * time.Millisecond,
	}
}

func sound(s taskstore.Store) taskstore.Store { return s }

type (
	store = taskstore.Store
	wrap  = func(s store) store
	// defect breaks a store; checks are the checks that must fail with it.
	defect struct {
		wrap   wrap
		checks []string
	}
)

const modelCheck = "any order of calls does what a plain model does"

func defects() map[string]defect {
	by := func(w wrap, checks ...string) defect { return defect{w, checks} }
	return map[string]defect{
		"reopening loses everything": by(sound, "what was confirmed survives", "transitions survive a crash"),
		"orphaned keys are lost": by(sound, "a key whose task was never written continues with its id", "a task that was never written is due",
			"a task that continues a remembered id has a first visit of its own", "a sweep settles no task that is made meanwhile"),
		"late tasks have no visit": by(sound, "a task that is made late is visited, or not made", "a remembered id is not made late without a visit",
			"a short task that is made late is visited, or not made", "a task that is made when the clock stepped back is visited, or not made"),
		"forgets the business": by(func(s store) store { return forgetfulTask{s} }, "create keeps all it is given"),
		"shares what it returns": by(func(s store) store { return sharing{s, new(sync.Map)} },
			"a task read is a copy"),
		"numbers of a second":           by(func(s store) store { return coarseNumbers{s} }, "numbers strictly increase"),
		"numbers follow the clock":      by(func(s store) store { return wallClockNumbers{s} }, "numbers increase when the clock goes back"),
		"create is not idempotent":      by(func(s store) store { return notIdempotent{s} }, "a repeat finds the first task", "simultaneous repeats make one task"),
		"it is never too late":          by(func(s store) store { return timeless{s} }, "no task is made too late, but one that was made is found"),
		"any body will do":              by(func(s store) store { return bodyBlind{s} }, "a used key with another body is a conflict"),
		"keys are of all applications":  by(func(s store) store { return keysOfAll{s} }, "keys belong to an application"),
		"keys are never free":           by(func(s store) store { return keyHoarding{s, new(sync.Map)} }, "a rejected task frees its key", "a forgotten task frees its key"),
		"tasks have few chunks":         by(func(s store) store { return fewChunks{s} }, "a task has as many chunks as cloud areas"),
		"dispatched is forgotten":       by(func(s store) store { return neverDispatched{s} }, "dispatched is noted"),
		"tasks are listed oldest first": by(func(s store) store { return oldestFirst{s} }, "tasks are listed newest first"),
		"nothing expires":               by(func(s store) store { return neverExpiring{s} }, "an expired task is gone"),
		"nothing is overdue":            by(func(s store) store { return neverOverdue{s} }, "begin of an overdue task"),
		"unknown tasks are found":       by(func(s store) store { return inventing{s} }, "an unknown task is not found"),
		"rejects what was begun":        by(func(s store) store { return rejectingBegun{s} }, "a begun task cannot be rejected", "a finished task cannot be rejected", "a dispatched task cannot be rejected, nor a rejected one dispatched"),
		"rejects without reason":        by(func(s store) store { return reasonless{s} }, "reject ends a task of which nothing was begun"),
		"begins what was rejected":      by(func(s store) store { return gateBlind{s, taskstore.GateRejected} }, "reject and first begin exclude each other", "reject ends a task of which nothing was begun", modelCheck),
		"begins what is finished":       by(func(s store) store { return gateBlind{s, taskstore.GateFinished} }, "begin of a finished chunk", "begin of a done chunk"),
		"begins what is not there":      by(func(s store) store { return gateBlind{s, taskstore.GateGone} }, "begin of a chunk that is not there"),
		"begins what is overdue":        by(func(s store) store { return gateBlind{s, taskstore.GateOverdue} }, "begin of an overdue task"),
		"begins what is held":           by(func(s store) store { return gateBlind{s, taskstore.GateHeld} }, "a paused task opens no chunk until it is resumed", "no chunk opens after pause has returned", modelCheck),
		"repeated pauses count":         by(func(s store) store { return countsRepeatedPauses{s, new(sync.Map)} }, "a repeated pause or resume changes nothing"),
		"it forgets transitions":        by(func(s store) store { return forgetsTransitions{s} }, "transitions are stored in their order", "each hold of a rollout is a transition"),
		"it counts published ones down": by(func(s store) store { return countsSentDown{s, new(sync.Map)} }, "published transitions are counted"),
		"any seq will do":               by(func(s store) store { return seqBlind{s} }, "a control call with another seq changes nothing"),
		"ended tasks are controlled":    by(func(s store) store { return controlsEnded{s} }, "a task that has ended cannot be controlled"),
		"held tasks record nothing":     by(func(s store) store { return recordsNothingHeld{s} }, "a paused task records results and can end"),
		"resume keeps the deadline":     by(func(s store) store { return fixedDeadline{s, new(sync.Map)} }, "resume moves the deadline by the time of the pause"),
		"a restart resumes":             by(sound, "a pause survives a crash", "cancels of items survive a crash"),
		"begins what is canceled":       by(func(s store) store { return gateBlind{s, taskstore.GateCanceled} }, "no chunk begins after cancel has returned", "a cancel reopens the chunks that were begun"),
		"a cancel has no reason":        by(func(s store) store { return forgetsReasons{s} }, "a cancel ends what was never begun"),
		"a cancel leaves chunks done":   by(func(s store) store { return keepsDone{s, new(sync.Map)} }, "a cancel reopens the chunks that were begun"),
		"a cancel notifies nobody":      by(func(s store) store { return cancelsSilently{s} }, "a cancel of a task that was never begun finishes it"),
		"an interrupt becomes a drain":  by(func(s store) store { return modeBlind{s} }, "a cancel changes from drain to interrupt only"),
		"canceled items are delivered":  by(func(s store) store { return deliversCanceled{s} }, "canceled items are not delivered"),
		"cancels are carried out twice": by(func(s store) store { return keepsItemCancels{s} }, "a worker carries out the cancels of items"),
		"cancels of items add up":       by(func(s store) store { return countsItemCancels{s} }, "a repeated cancel of items changes nothing"),
		"a retry counts twice":          by(func(s store) store { return countsRetries{s} }, "a task and its retries name each other"),
		"every item is open":            by(func(s store) store { return allOpen{s} }, "begin gives the chunk and its open items"),
		"every begin is the first":      by(func(s store) store { return alwaysFirst{s} }, "first begun stays", "undone names when a chunk was begun"),
		"nothing is delivered":          by(func(s store) store { return undelivering{s} }, "delivered moves pending items only"),
		"nothing is done":               by(func(s store) store { return neverDone{s} }, "begin of a done chunk", "undone chunks"),
		"the last result wins":          by(func(s store) store { return lastWins{s, new(sync.Map)} }, "a higher rank replaces a lower one once", "huge content is cut", modelCheck),
		"repeats are counted":           by(func(s store) store { return countingRepeats{s} }, "a repeat changes nothing", "simultaneous repeats count once", "results of items that the task does not have are ignored"),
		"several complete":              by(func(s store) store { return doubleCompleting{s} }, "one caller completes", "a late result does not complete again", "simultaneous repeats count once", modelCheck),
		"notified is forgotten":         by(func(s store) store { return neverNotified{s} }, "a late result does not complete again", "a notified task is not due"),
		"published is forgotten":        by(func(s store) store { return neverPublished{s} }, "a task whose event was published has its callback left"),
		"published is notified":         by(func(s store) store { return publishedIsNotified{s} }, "a task whose event was published has its callback left"),
		"open tasks are published":      by(func(s store) store { return publishesOpen{s, new(sync.Map)} }, "an open task has no published event"),
		"only the first is notified":    by(func(s store) store { return notifiesFirst{s} }, "several ends are notified at once"),
		"an absent task stops the rest": by(func(s store) store { return stopsAtAbsent{s} }, "several ends are notified at once"),
		"open tasks are settled":        by(func(s store) store { return settlesOpen{s} }, "a task that is open after all stays due"),
		"counters drift":                by(func(s store) store { return driftingCounts{s} }, "counters add up at every moment", "a repeat changes nothing", "one caller completes"),
		"counters lag behind":           by(func(s store) store { return staleCounts{s, new(sync.Map)} }, "counters add up at every moment"),
		"answers are out of order":      by(func(s store) store { return shuffledAnswers{s} }, "batches are answered one by one"),
		"status is not kept":            by(func(s store) store { return statusless{s} }, "a result is kept whole"),
		"no more than 2000 items":       by(func(s store) store { return small{s} }, "a large task"),
		"good news first":               by(func(s store) store { return goodNewsFirst{s} }, "pages show every item once, failures first"),
		"pages are not filtered":        by(func(s store) store { return filterBlind{s} }, "pages of one state"),
		"any cursor will do":            by(func(s store) store { return cursorForgiving{s} }, "a foreign cursor is refused"),
		"an item has another's host":    by(func(s store) store { return wrongOwners{s} }, "items have their hosts"),
		"all items have one spec":       by(func(s store) store { return oneSpec{s} }, "a chunk shows its items"),
		"nothing is due":                by(func(s store) store { return neverDue{s} }, "a new task is due after its first visit"),
		"first visits know no deadline": by(func(s store) store { return lateVisitor{s} }, "a new task is due at its deadline if that is before"),
		"latest due first":              by(func(s store) store { return latestDueFirst{s} }, "due tasks come longest overdue first"),
		"revisits at once":              by(func(s store) store { return impatient{s} }, "revisit postpones"),
		"visits wait for the clock":     by(func(s store) store { return stalling{s} }, "a visit is due when the clock steps back"),
		"leases wait for the clock":     by(func(s store) store { return holding{s, new(sync.Map)} }, "a lease is over when the clock steps back"),
		"visits have no moment":         by(func(s store) store { return dateless{s} }, "a visit says since when it is due"),
		"visits are as late as asked":   by(func(s store) store { return patient{s, new(sync.Map)} }, "a visit is never later than the longest"),
		"only the first is settled":     by(func(s store) store { return firstOnly{s} }, "many visits are set and settled in one call"),
		"any visit is settled":          by(func(s store) store { return settlesAnyMoment{s} }, "settling a visit leaves the one that was set since"),
		"tasks by id have no gaps":      by(func(s store) store { return gapless{s} }, "tasks by id"),
		"no item is delivered":          by(func(s store) store { return noneDelivered{s} }, "delivered items of many tasks"),
		"every item is delivered":       by(func(s store) store { return stateBlind{s} }, "delivered items of many tasks"),
		"settles nothing":               by(func(s store) store { return unsettling{s} }, "a settled task is not due"),
		"republished is forgotten":      by(func(s store) store { return neverRepublished{s} }, "undone chunks"),
		"a lease is for all":            by(func(s store) store { return leasingToAll{s} }, "a lease has one holder", "one of many gets a lease"),
		"a lease is forever":            by(func(s store) store { return leasingForever{s} }, "a lease ends by itself"),
		"a lease is not renewed":        by(func(s store) store { return neverRenewing{s, new(sync.Map)} }, "a renewed lease lasts"),
		"presences are out of order":    by(func(s store) store { return shuffledPresences{s} }, "presences are answered in order"),
		"agents never die":              by(func(s store) store { return immortal{s, new(sync.Map)} }, "a presence ends", "agent ids of the silent do not resolve", "host pages show the living"),
		"instances are always new":      by(func(s store) store { return alwaysNew{s} }, "since is of the instance"),
		"who comes back is new":         by(func(s store) store { return forgetful{s, new(sync.Map)} }, "since survives that the instance left", "since survives silence"),
		"instances are never forgotten": by(func(s store) store { return unforgetting{s, new(sync.Map)} }, "since is new after another instance", "an instance is forgotten in the end"),
		"conflicts are not seen":        by(func(s store) store { return conflicting{s, false, new(sync.Map)} }, "two live instances are a conflict", "a conflict ends with one of the two"),
		"any second instance conflicts": by(func(s store) store { return conflicting{s, true, new(sync.Map)} }, "two live instances are a conflict", "a conflict ends with one of the two", "an instance that comes back after the other is gone is no conflict",
			"instances that leave for one another are no conflict", "a conflict ends when one of the two leaves"),
		"leaving is not heard": by(func(s store) store { return neverLeaving{s} }, "leaving ends a presence"),
		"whoever leaves, the host is off": by(func(s store) store { return farewellBlind{s} },
			"leaving of a former instance ends nothing"),
		"agents do not move":            by(func(s store) store { return firstAddressOnly{s, new(sync.Map)} }, "agent ids resolve to hosts"),
		"a binding is a presence":       by(func(s store) store { return bindingAsPresence{s} }, "a bound agent id leads to its host", "a bound id lasts"),
		"bindings do not end":           by(func(s store) store { return boundForGood{s, new(sync.Map)} }, "a bound id ends when the host's agent announces another"),
		"agents come before bindings":   by(func(s store) store { return announcedFirst{s} }, "a bound id comes before what an agent announces"),
		"copies are not noticed":        by(func(s store) store { return incarnationBlind{s} }, "two live incarnations of an instance are a conflict"),
		"a restart is a reinstallation": by(func(s store) store { return restartIsNew{s} }, "a restarted agent is the same instance and no conflict"),
		"the last claimant wins":        by(func(s store) store { return lastClaimant{s, new(sync.Map)} }, "an id that two live agents announce leads nowhere"),
		"there are no claimants":        by(func(s store) store { return claimless{s} }, "an id that two live agents announce leads nowhere"),
		"a host has one bound id":       by(func(s store) store { return boundByHost{s, new(sync.Map)} }, "a bound id leads to one host, but a host may have some"),
		"binds the rest":                by(func(s store) store { return bindingTheRest{s} }, "bindings without an id or a host are refused"),
		"host pages skip":               by(func(s store) store { return skippingHosts{s} }, "host pages are in order"),
		"hosts follow the latest clock": by(func(s store) store { return latestClock{s, new(atomic.Int64)} }, "host pages show the living when the clock steps back"),
		"cancelling is not heard":       by(func(s store) store { return deaf{s} }, "calls end with their context"),
		"the clock stands":              by(func(s store) store { return stopped{s} }, "the clock goes on"),
	}
}

func TestEveryCheckNoticesABrokenStore(t *testing.T) {
	t.Parallel()
	checks := map[string]storetest.Check{}
	for _, c := range storetest.Checks() {
		if _, twice := checks[c.Name]; twice {
			t.Errorf("two checks are called %q", c.Name)
		}
		checks[c.Name] = c
	}
	proven := map[string]bool{}
	all := defects()
	maps.Copy(all, rolloutDefects())
	for name, d := range all {
		for _, check := range d.checks {
			c, ok := checks[check]
			if !ok {
				t.Errorf("there is no check %q", check)
				continue
			}
			proven[check] = true
			t.Run(name+"/"+check, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				// A random check may miss the defect, but not always.
				var err error
				for tries := 0; err == nil && tries < 20; tries++ {
					err = c.Err(ctx, harness(d.wrap).Subject(t))
				}
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a store that is broken (%s) was not found out: %v", name, err)
				}
			})
		}
	}
	for _, c := range storetest.Checks() {
		if !proven[c.Name] {
			t.Errorf("no broken store proves that %q can fail", c.Name)
		}
	}
}

// The contract test of boltstore has the heavy checks.
func TestASoundStorePasses(t *testing.T) {
	t.Parallel()
	for _, c := range storetest.Checks() {
		if c.Heavy || !c.Runnable(storetest.Subject{Advance: func(time.Duration) {}}) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			h := harness(sound) // with a clock of its own
			h.Reopen, h.Orphan, h.Delay, h.Patience = nil, nil, nil, 0
			c.Fn(t.Context(), t, h.Subject(t))
		})
	}
}
