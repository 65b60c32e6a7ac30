//go:build cluster && linux

package cluster

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/test/cluster/fleet"
	"github.com/procfleet/procfleet/test/internal/page"
)

// outcome is an item of the list of docs/reference/faults.md.
type outcome struct {
	name, story string
	result      string       // of a passed scenario; default: pass
	under       check.Totals // the load during the scenario
	took        time.Duration
	ran, failed bool // neither, if it did not run
}

// play runs do under a load as a subtest, and checks the load's history for
// violations.
func (o *outcome) play(t *testing.T, f *fleet.Fleet, run string, do func(s *stage) error) {
	t.Helper()
	settled := false
	began := time.Now()
	o.failed = !t.Run(o.name, func(t *testing.T) {
		o.ran = true
		load := startLoad(t, f, run)
		defer load.Stop()
		s := &stage{Fleet: f, ctx: t.Context(), log: t.Logf, load: load}
		if err := do(s); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.Repair(), s.settle()); err != nil {
			t.Fatal(err)
		}
		settled = true
		found, err := load.Settle(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o.under = load.Totals()
		t.Log(o.under)
		for _, v := range found {
			t.Error(v)
		}
	})
	o.took = time.Since(began)
	if o.failed && !settled {
		t.Fatal("the fleet is not settled, so further scenarios would have no meaning")
	}
}

func (o *outcome) verdict() string {
	if o.failed {
		return "**failed**"
	}
	return cmp.Or(o.result, "pass")
}

// item returns the list item of a scenario. Story and outcome of a scenario that passed
// are omitted.
func (o *outcome) item() string {
	item := "* " + o.name
	if o.failed || o.result != "" {
		if o.story != "" {
			item += ": " + o.story
		}
		item += ". Outcome: " + o.verdict()
	}
	return item + "\n"
}

// logOutcomes logs the outcome and duration of every scenario.
func logOutcomes(t *testing.T, outcomes []*outcome) {
	t.Helper()
	for _, o := range outcomes {
		if o.ran {
			t.Logf("%6s  %s: %s", o.took.Round(time.Second), o.name, o.verdict())
		}
	}
}

// source returns the line above the list, which names the commit, the duration and the load.
func source(outcomes []*outcome) (string, error) {
	commit, err := exec.Command("git", "log", "-1", "--format=%h of %cs").Output()
	if err != nil {
		return "", fmt.Errorf("get the commit from git: %w", err)
	}
	var took time.Duration
	var under check.Totals
	for _, o := range outcomes {
		took += o.took
		under.Submissions += o.under.Submissions
		under.Items += o.under.Items
	}
	return fmt.Sprintf("From a run of commit %s: %.0f minutes without the start of the fleets, %d submissions, %d items. Scenarios without an outcome passed.\n\n",
		bytes.TrimSpace(commit), took.Minutes(), under.Submissions, under.Items), nil
}

// writeOutcomes writes the list into its section of a document.
func writeOutcomes(document string, outcomes []*outcome) error {
	text, err := source(outcomes)
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		if o.ran {
			text += o.item()
		}
	}
	return page.Write(document, "outcomes", text)
}
