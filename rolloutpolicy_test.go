package procfleet_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
)

func policy(t *testing.T, text string) *procfleet.RolloutPolicy {
	t.Helper()
	var p procfleet.RolloutPolicy
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func TestAWindowRoundsUpAndABudgetRoundsDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy           string
		units            int
		window, failures int
		stages           []int
	}{
		{`{}`, 7, 7, procfleet.AnyFailures, []int{7}},
		{`{"max_concurrency":"10%","max_failures":"10%"}`, 19, 2, 1, []int{19}},
		{`{"max_concurrency":"0.1%","max_failures":0}`, 19, 1, 0, []int{19}},
		{`{"max_concurrency":500,"max":300,"max_failures":"3"}`, 1000, 300, 3, []int{1000}},
		{`{"max_concurrency":500}`, 20, 20, procfleet.AnyFailures, []int{20}},
		{`{"ramp":["1","5%","25%","100%"]}`, 200, 200, procfleet.AnyFailures, []int{1, 9, 40, 150}},
		{`{"ramp":["1","5%"]}`, 10, 10, procfleet.AnyFailures, []int{1, 9}}, // 5 % of 10 hosts are the first host
		{`{"ramp":["50"]}`, 3, 3, procfleet.AnyFailures, []int{3}},
	} {
		p := policy(t, c.policy)
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", c.policy, err)
		}
		plan := p.Plan(time.Minute, c.units)
		var stages []int
		for _, s := range plan.Stages {
			stages = append(stages, s.Units)
		}
		if plan.Window != c.window || plan.Failures != c.failures || !cmp.Equal(stages, c.stages) || plan.Units() != c.units {
			t.Errorf("%s of %d: window %d, failures %d, stages %v", c.policy, c.units, plan.Window, plan.Failures, stages)
		}
	}
}

func TestEachGroupOfTheOrderEndsAStage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy string
		groups []int
		stages []int
	}{
		{`{}`, []int{2, 0, 5}, []int{2, 5}},
		{`{"ramp":["1","50%"]}`, []int{2, 8}, []int{1, 1, 3, 5}},
		{`{"ramp":["2"]}`, []int{0, 2, 8}, []int{2, 8}},
	} {
		plan := policy(t, c.policy).Plan(time.Minute, c.groups...)
		var stages []int
		for _, s := range plan.Stages {
			stages = append(stages, s.Units)
		}
		if !cmp.Equal(stages, c.stages) {
			t.Errorf("%s of %v: stages %v, not %v", c.policy, c.groups, stages, c.stages)
		}
	}
}

func TestAWrongPolicyNamesTheField(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`{"max_concurrency":"ten"}`:                            "max_concurrency",
		`{"max_concurrency":"101%"}`:                           "max_concurrency",
		`{"max_failures":-1}`:                                  "max_failures",
		`{"max_failures":1.5}`:                                 "max_failures",
		`{"ramp":["1","x"]}`:                                   "ramp",
		`{"ramp":["10%","5%"]}`:                                "ramp",
		`{"max":-1}`:                                           "max",
		`{"count":["succeeded"]}`:                              "count",
		`{"on_failure":"stop"}`:                                "on_failure",
		`{"stage":{"gates":["open"]}}`:                         "stage.gates",
		`{"stage":{"bake":"200h"}}`:                            "stage.bake",
		`{"stage":{"unhealthy":1}}`:                            "stage.unhealthy",
		`{"on_failure":"hold","undo":{"speed":"all"}}`:         "undo",
		`{"on_failure":"undo","undo":{"speed":"fast"}}`:        "undo.speed",
		`{"stage":{"gates":["auto"],"unhealthy":-1}}`:          "stage.unhealthy",
		`{"stage":{"gates":["auto"],"inconclusive":"go"}}`:     "stage.inconclusive",
		`{"stage":{"gates":["manual"],"inconclusive":"pass"}}`: "stage.inconclusive",
		`{"stage":{"progress_deadline":"-1s"}}`:                "stage.progress_deadline",
		`{"deadline":"1s"}`:                                    "deadline",

		`{"order":{"by":"rack","list":["a"]}}`:           "order.by",
		`{"order":{"list":["a"]}}`:                       "order.by",
		`{"order":{"by":"cloud"}}`:                       "order.list",
		`{"order":{"by":"label","list":["a"]}}`:          "order.label",
		`{"zones":{"by":"set","label":"x","at_once":1}}`: "zones.label",
		`{"zones":{"by":"cloud"}}`:                       "zones",
		`{"zones":{"by":"cloud","at_once":-1}}`:          "zones",
		`{"zones":{"at_once":1}}`:                        "zones.by",
	} {
		if err := policy(t, text).Validate(); err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAnAmountReadsWhatItWrites(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "20", "2.5%", "100%"} {
		a, err := procfleet.ParseAmount(text)
		if err != nil || a.String() != text || a.IsZero() {
			t.Errorf("%s is read as %s, %v", text, a, err)
		}
		data, err := json.Marshal(a)
		var again procfleet.Amount
		if err != nil || json.Unmarshal(data, &again) != nil || again != a {
			t.Errorf("%s is encoded as %s, and read as %v", text, data, again)
		}
	}
}
