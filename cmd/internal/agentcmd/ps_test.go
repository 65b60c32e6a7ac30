package agentcmd

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agentproto"
)

func TestTableSaysHowProcessesStandAndWhatComesNext(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	for _, c := range []struct {
		process local.Process
		want    []string // the columns
	}{
		{
			local.Process{
				Key: "shop:web", State: "running", PID: 7, Since: in(-3*time.Minute - 5*time.Second), Restarts: 2,
				LastExit: &agentproto.LastExit{At: in(-3 * time.Minute), Known: true, Code: 1},
				Limits:   local.Limits{CPU: 50, Memory: 12.5}, NextAction: local.NextWatch,
			},
			[]string{"shop:web", "running", "7", "3m5s ago", "2", "exit 1, 3m0s ago", "cpu 50%, memory 12.5%", "start again if it ends"},
		},
		{
			local.Process{
				Key: "a", State: "backoff", Since: in(-2 * time.Second), NextAction: local.NextStart, NextAt: in(8 * time.Second),
				LastExit: &agentproto.LastExit{At: in(-2 * time.Second), Signal: "SIGKILL", Why: "out of memory"},
			},
			[]string{"a", "backoff", "-", "2s ago", "0", "SIGKILL (out of memory), 2s ago", "-", "start in 8s"},
		},
		{
			local.Process{Key: "b\nc", State: "running", PID: 8, PIDs: []int{8, 9}, NextAction: local.NextFinish, Busy: "stop"},
			[]string{"b?c", "running", "8,9", "-", "0", "-", "-", "busy: stop"},
		},
		{
			local.Process{Key: "d", State: "fatal", NextAction: local.NextAdopt, GivenUp: "it flaps", LastExit: &agentproto.LastExit{}},
			[]string{"d", "fatal", "-", "-", "0", "status unknown", "-", "adoption only, given up: it flaps"},
		},
		{
			local.Process{Key: "e", State: "stopped", Since: in(-50 * time.Hour), NextAction: local.NextNothing},
			[]string{"e", "stopped", "-", "2d2h ago", "0", "-", "-", "-"},
		},
		{
			local.Process{Key: "f", State: "exited", NextAction: local.NextRun, NextAt: in(-time.Second)},
			[]string{"f", "exited", "-", "-", "0", "-", "-", "run soon"},
		},
		{
			local.Process{Key: "g", State: "unknown", NextAction: local.NextSearch},
			[]string{"g", "unknown", "-", "-", "0", "-", "-", "search for it"},
		},
		{
			local.Process{Key: "h", State: "running", NextAction: local.NextUnconfirmed},
			[]string{"h", "running", "-", "-", "0", "-", "-", "suspended until an operation: journal damaged"},
		},
		{
			local.Process{Key: "i", State: "stopped", NextAction: local.NextQuarantined},
			[]string{"i", "stopped", "-", "-", "0", "-", "-", "quarantined until the agent restarts"},
		},
	} {
		var out bytes.Buffer
		if err := writeTable(&out, local.Reply{At: now, Processes: []local.Process{c.process}}); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got := columns(lines[len(lines)-1]); strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
	frozen := local.Process{NextAction: local.NextFrozen, NextAt: now}
	if got, want := nextText(now, &frozen), "frozen until "+now.Local().Format(time.DateTime); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// columns splits a line of a table at double spaces.
func columns(line string) (all []string) {
	for text := range strings.SplitSeq(line, "  ") {
		if text = strings.TrimSpace(text); text != "" {
			all = append(all, text)
		}
	}
	return all
}
