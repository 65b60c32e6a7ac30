package catalogtest_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog/catalogtest"
)

type (
	store = catalogtest.Store
	wrap  = func(s store) store
	// defect breaks a store; checks are the checks that must fail with it.
	defect struct {
		wrap   wrap
		checks []string
	}
)

// harness opens models, each wrapped by wrap. Reopening loses all data.
func harness(wrap wrap) catalogtest.Harness {
	open := func(testing.TB) store { return wrap(catalogtest.NewModel()) }
	return catalogtest.Harness{Open: open, Reopen: func(tb testing.TB, _ store) store { tb.Helper(); return open(tb) }}
}

func sound(s store) store { return s }

// sharedCheck is the check that the model does not pass.
const sharedCheck = "what is given and returned is not shared"

const modelCheck = "any order of calls does what a plain model does"

func defects() map[string]defect {
	by := func(w wrap, checks ...string) defect { return defect{w, checks} }
	return map[string]defect{
		"reopening loses everything":     by(sound, "what was confirmed survives"),
		"shares what it keeps":           by(sound, sharedCheck),
		"labels are lost":                by(func(s store) store { return labelless{s} }, "a registration is kept whole", "groups are kept whole"),
		"registrations are out of order": by(func(s store) store { return shuffledRegistrations{s} }, "registrations are answered in order"),
		"always replaces":                by(func(s store) store { return replacing{s, true} }, "without replace a registration stays", "repeats within one call come one after the other", modelCheck),
		"never replaces":                 by(func(s store) store { return replacing{s, false} }, "with replace the new spec takes the old one's place", modelCheck),
		"late is in time":                by(func(s store) store { return hasty{s} }, "a late registration replaces only older requests"),
		"a new spec is a new registration": by(func(s store) store { return renewing{s} },
			"with replace the new spec takes the old one's place", "a registration is kept whole"),
		"looks before it registers": by(func(s store) store { return lookingFirst{s} }, "repeats within one call come one after the other"),
		"nothing was there before":  by(func(s store) store { return firstAlways{s} }, "one of many registers first", "simultaneous writers do not disturb each other", "one call registers thousands of hosts"),
		"everything was there":      by(func(s store) store { return thereAlways{s} }, "unregister says what was there", "what is not a process is not found"),
		"any number of labels":      by(func(s store) store { return crowding{s, map[procfleet.Host]map[string]string{}} }, "a host with too many labels does not change, and others do", "labels that are no labels are rejected"),
		"labels replace labels":     by(func(s store) store { return relabeling{s} }, "labels are set, replaced and removed", "a host with too many labels does not change, and others do", modelCheck),
		"ends all registrations":    by(func(s store) store { return endingAll{s} }, "the registrations of a request end, and no others"),
		"unregisters nothing":       by(func(s store) store { return keeping{s} }, "what was unregistered is new again", "unregister says what was there", "entries join what is registered and what is reported", modelCheck),
		"no more than 2000 hosts":   by(func(s store) store { return small{s} }, "one call registers thousands of hosts"),
		"hosts are ordered as text": by(func(s store) store { return hostsAsText{s} }, "registered hosts are walked in order, each once"),
		"a walk needs its last host": by(func(s store) store { return lastHostNeeded{s} },
			"a walk goes on after a host that is unregistered"),
		"case does not matter":             by(func(s store) store { return caseless{s} }, "processes are identified by host, namespace and name"),
		"leaves out what it cannot store":  by(func(s store) store { return lenient{s} }, "what is not a process is refused"),
		"moments of reports are lost":      by(func(s store) store { return momentless{s} }, "a report is kept whole"),
		"reports are out of order":         by(func(s store) store { return shuffledReports{s} }, "reports are answered in order"),
		"the last report counts":           by(func(s store) store { return lastReport{s} }, "a report that is not newer changes nothing", "the newest report of one call counts", "the newest of simultaneous reports counts", modelCheck),
		"an equal report counts":           by(func(s store) store { return equalReport{s} }, "a report that is not newer changes nothing", "the newest report of one call counts"),
		"reports are added up":             by(func(s store) store { return addingUp{s} }, "a process that is left out falls back to its registration", "the newest of simultaneous reports counts", modelCheck),
		"only what has a name is reported": by(func(s store) store { return namedOnly{s} }, "processes without namespace and name are reported, but no entries", "a report is kept whole"),
		"the first of two is the entry":    by(func(s store) store { return firstOfTwo{s} }, "of two reported processes with the same name the last is the entry"),
		"entries are out of order":         by(func(s store) store { return shuffledEntries{s} }, "entries are answered in order"),
		"registered or reported":           by(func(s store) store { return eitherOr{s} }, "entries join what is registered and what is reported", "entries are answered in order"),
		"entries are ordered by host":      by(func(s store) store { return sortedPages{s, byHost} }, "entry pages are in order of name and host", modelCheck),
		"reported entries come first":      by(func(s store) store { return sortedPages{s, reportedFirst} }, "the order of entries does not depend on reports", "1,500 entries are paged while reports come in"),
		"pages begin at their size":        by(func(s store) store { return wholePages{s} }, "entry pages begin anywhere"),
		"counts to 1000":                   by(func(s store) store { return countingTo1000{s} }, "1,500 entries are paged while reports come in"),
		"groups are for ever":              by(func(s store) store { return stubborn{s} }, "groups are replaced and removed", modelCheck),
		"an address has groups":            by(func(s store) store { return cloudless{s} }, "groups belong to a host and a namespace"),
		"a host has one namespace":         by(func(s store) store { return forgetful{s} }, "a host has the groups of all its namespaces"),
		"one namespace has policies":       by(func(s store) store { return lawless{s} }, "policies belong to a namespace"),
		"a changed schedule has no run":    by(func(s store) store { return restless{s} }, "a schedule is replaced without its last run, and removed with it"),
		"runs make schedules":              by(func(s store) store { return haunted{s} }, "a schedule is replaced without its last run, and removed with it"),
		"runs go back":                     by(func(s store) store { return repeating{s} }, "the last run of a schedule never goes back"),
		"there is one schedule":            by(func(s store) store { return oneSchedule{s} }, "schedules are kept whole and in order"),
		"invalid schedules are lost":       by(func(s store) store { return losing{s} }, "invalid schedules are refused"),
		"policies are for ever":            by(func(s store) store { return piling{s} }, "policies are replaced and removed"),
		"a default is lost":                by(func(s store) store { return boundless{s} }, "policies are kept whole"),
		"reasons of freezes are lost":      by(func(s store) store { return silent{s} }, "a freeze is kept whole"),
		"a freeze is not shortened":        by(func(s store) store { return patient{s} }, "a freeze takes the place of the one before"),
		"a freeze is for ever":             by(func(s store) store { return eternal{s} }, "a freeze ends by itself"),
		"everything was frozen":            by(func(s store) store { return liftsAlways{s} }, "lift says what was frozen", modelCheck),
		"what is frozen stays so":          by(func(s store) store { return frozenThrough{s} }, "lift says what was frozen", modelCheck),
		"everywhere is nowhere":            by(func(s store) store { return ownOnly{s} }, "a host has its own freezes and those of namespaces everywhere", modelCheck),
		"freezes are ordered as text":      by(func(s store) store { return freezesAsText{s} }, "freezes are walked in order, each once"),
		"no more than 1000 freezes":        by(func(s store) store { return fewFreezes{s} }, "one call freezes 2,000 hosts"),
		"every time will do":               by(func(s store) store { return obliging{s} }, "what cannot be frozen is refused", "invalid policies are refused"),
		"nothing is too little":            by(func(s store) store { return picky{s} }, "calls about nothing are answered with nothing"),
		"deaf to its context":              by(func(s store) store { return deaf{s} }, "calls end with their context"),
	}
}

func TestBrokenStoresAreFoundOut(t *testing.T) {
	t.Parallel()
	checks := map[string]catalogtest.Check{}
	for _, c := range catalogtest.Checks() {
		checks[c.Name] = c
	}
	proven, all := map[string]bool{}, defects()
	maps.Copy(all, businessDefects())
	maps.Copy(all, webhookDefects())
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
	for _, c := range catalogtest.Checks() {
		if !proven[c.Name] {
			t.Errorf("no broken store proves that %q can fail", c.Name)
		}
	}
}

func TestTheModelPasses(t *testing.T) {
	t.Parallel()
	for _, c := range catalogtest.Checks() {
		if c.Reopens || c.Name == sharedCheck {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Fn(t.Context(), t, harness(sound).Subject(t))
		})
	}
}
