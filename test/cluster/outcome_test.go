//go:build cluster && linux

package cluster

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/test/cluster/fleet"
	"github.com/procfleet/procfleet/test/internal/page"
)

// outcome is a row of the table of docs/reference/faults.md.
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

// row returns the row of the table.
func (o *outcome) row() string {
	return fmt.Sprintf("| %s | %s | %d | %d | %s |\n", o.name, o.story, o.under.Submissions, o.under.Items, o.verdict())
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

// source returns the line above the table, which names the commit and the duration.
func source(outcomes []*outcome) (string, error) {
	commit, err := exec.Command("git", "log", "-1", "--format=%h of %cs").Output()
	if err != nil {
		return "", fmt.Errorf("get the commit from git: %w", err)
	}
	var took time.Duration
	for _, o := range outcomes {
		took += o.took
	}
	return fmt.Sprintf("From a run of commit %s, %.0f minutes without the start of the fleets.\n\n", bytes.TrimSpace(commit), took.Minutes()), nil
}

// writeOutcomes writes the table into its section of a document.
func writeOutcomes(document string, outcomes []*outcome) error {
	from, err := source(outcomes)
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString(from + "| scenario | details | submissions | items | outcome |\n| --- | --- | ---: | ---: | --- |\n")
	for _, o := range outcomes {
		if o.ran {
			text.WriteString(o.row())
		}
	}
	return page.Write(document, "outcomes", text.String())
}
