package catalogtest

import (
	"context"
	"strings"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func policyChecks() []Check {
	return []Check{
		{Name: "policies are kept whole", Fn: policiesWhole},
		{Name: "policies are replaced and removed", Fn: policiesReplaced},
		{Name: "policies belong to a namespace", Fn: policiesToldApart},
		{Name: "invalid policies are refused", Fn: policiesRefused},
	}
}

func wholePolicies() catalog.RolloutPolicies {
	tenth, _ := procfleet.ParseAmount("10.5%")
	none, _ := procfleet.ParseAmount("0")
	return catalog.RolloutPolicies{
		Policies: map[string]procfleet.RolloutPolicy{
			"careful.1": {
				MaxConcurrency: tenth, Max: 20, Ramp: []procfleet.Amount{tenth}, Shuffle: true, MaxFailures: &none,
				Count: []procfleet.State{procfleet.StateFailed}, OnFailure: procfleet.OnFailureCancel,
				Order:    procfleet.HostOrder{HostGrouping: procfleet.HostGrouping{By: procfleet.GroupByCloud}, List: []string{"3"}},
				Zones:    procfleet.HostZones{HostGrouping: procfleet.HostGrouping{By: procfleet.GroupByLabel, Label: "rack"}, AtOnce: 1},
				Stage:    procfleet.RolloutGate{Bake: procfleet.Duration(time.Minute), Gates: []string{procfleet.GateManual}},
				Deadline: procfleet.Duration(time.Hour),
			},
			"quick": {},
		},
		Default: "careful.1", RequiredAbove: 20,
		Windows: []procfleet.MaintenanceWindow{
			{
				Name: "nights", Effect: procfleet.EffectAllow, Cron: "0 22 * * 1-5", TimeZone: "Europe/Berlin", Duration: procfleet.Duration(time.Hour),
				HostGrouping: procfleet.HostGrouping{By: procfleet.GroupByCloud}, Groups: []string{"3"},
			},
			{Name: "sale", Effect: procfleet.EffectDeny, From: time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)},
		},
	}
}

func onePolicy(name string) catalog.RolloutPolicies {
	return catalog.RolloutPolicies{Policies: map[string]procfleet.RolloutPolicy{name: {Max: 1}}}
}

func policies(ctx context.Context, t T, s catalog.Store, namespaces ...string) []catalog.RolloutPolicies {
	t.Helper()
	found, err := s.Policies(ctx, namespaces)
	must(t, err, "policies")
	return found
}

func setPolicies(ctx context.Context, t T, s catalog.Store, namespace string, p catalog.RolloutPolicies) {
	t.Helper()
	must(t, s.SetPolicies(ctx, namespace, p), "set policies")
}

func policiesWhole(ctx context.Context, t T, s Subject) {
	setPolicies(ctx, t, s, "2", wholePolicies())
	equal(t, "policies", policies(ctx, t, s, "3", "2", "2"), []catalog.RolloutPolicies{{}, wholePolicies(), wholePolicies()})
}

func policiesReplaced(ctx context.Context, t T, s Subject) {
	setPolicies(ctx, t, s, "2", wholePolicies())
	onlyWindows := catalog.RolloutPolicies{Windows: wholePolicies().Windows}
	setPolicies(ctx, t, s, "2", onlyWindows)
	equal(t, "windows without policies", policies(ctx, t, s, "2"), []catalog.RolloutPolicies{onlyWindows})
	setPolicies(ctx, t, s, "2", onePolicy("b"))
	equal(t, "replaced policies", policies(ctx, t, s, "2"), []catalog.RolloutPolicies{onePolicy("b")})
	setPolicies(ctx, t, s, "2", catalog.RolloutPolicies{})
	setPolicies(ctx, t, s, "3", catalog.RolloutPolicies{})
	equal(t, "removed policies", policies(ctx, t, s, "2", "3"), []catalog.RolloutPolicies{{}, {}})
}

func policiesToldApart(ctx context.Context, t T, s Subject) {
	namespaces := []string{"2", "3", "acme.2", "a:b {1}", strings.Repeat("n", procfleet.MaxKey)}
	var want []catalog.RolloutPolicies
	for i, namespace := range namespaces {
		want = append(want, onePolicy(strings.Repeat("p", i+1)))
		setPolicies(ctx, t, s, namespace, want[i])
	}
	equal(t, "policies", policies(ctx, t, s, namespaces...), want)
}

func policiesRefused(ctx context.Context, t T, s Subject) {
	setPolicies(ctx, t, s, "2", wholePolicies())
	noDefault := wholePolicies()
	noDefault.Default = "other"
	negative := onePolicy("a")
	negative.Default, negative.RequiredAbove = "a", -1
	invalid := onePolicy("a")
	invalid.Policies["a"] = procfleet.RolloutPolicy{Max: -1}
	for what, p := range map[string]catalog.RolloutPolicies{
		"a default that does not exist": noDefault, "a negative number": negative, "an invalid policy": invalid,
		"a window without an effect": {Windows: []procfleet.MaintenanceWindow{{Name: "w"}}},
		"a name with a space":        onePolicy("a b"), "an empty name": onePolicy(""), "a long name": onePolicy(strings.Repeat("p", catalog.MaxPolicyName+1)),
		"a limit without a default": {RequiredAbove: 1},
	} {
		if err := s.SetPolicies(ctx, "2", p); err == nil {
			t.Errorf("%s was stored", what)
		}
	}
	modules := catalog.RolloutPolicies{Policies: map[string]procfleet.RolloutPolicy{"m": {Order: procfleet.HostOrder{
		HostGrouping: procfleet.HostGrouping{By: procfleet.GroupByModule}, List: []string{"canary"},
	}}}}
	setPolicies(ctx, t, s, "3", modules)
	if err := s.SetPolicies(ctx, "shop", modules); err == nil {
		t.Errorf("modules of a namespace without modules were stored")
	}
	for _, namespace := range []string{"", "a\x00b", strings.Repeat("n", procfleet.MaxKey+1)} {
		if err := s.SetPolicies(ctx, namespace, wholePolicies()); err == nil {
			t.Errorf("policies of namespace %q were stored", namespace)
		}
	}
	equal(t, "policies", policies(ctx, t, s, "2"), []catalog.RolloutPolicies{wholePolicies()})
}
