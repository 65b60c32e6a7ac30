package catalogtest

import (
	"context"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func labelChecks() []Check {
	return []Check{
		{Name: "labels are set, replaced and removed", Fn: labelsChange},
		{Name: "a host with too many labels does not change, and others do", Fn: labelsBounded},
		{Name: "labels that are no labels are rejected", Fn: labelsRejected},
	}
}

func wholeLabeling() catalog.Labeling {
	return catalog.Labeling{Set: map[string]string{"zone": "a1", "1": "x\"<&>y", "empty": ""}}
}

func label(ctx context.Context, t T, s catalog.Store, l catalog.Labeling, hosts ...procfleet.Host) []bool {
	t.Helper()
	changed, err := s.LabelHosts(ctx, hosts, l)
	must(t, err, "label hosts")
	return changed
}

func labelsOf(ctx context.Context, t T, s catalog.Store, hosts ...procfleet.Host) []map[string]string {
	t.Helper()
	labels, err := s.LabelsOf(ctx, hosts)
	must(t, err, "labels")
	return labels
}

func labelsChange(ctx context.Context, t T, s Subject) {
	a, b, c := host(0, 1), host(3, 1), host(0, 2)
	equal(t, "changed", label(ctx, t, s, wholeLabeling(), b, a, b), []bool{true, true, true})
	equal(t, "labels", labelsOf(ctx, t, s, a, c, b), []map[string]string{wholeLabeling().Set, nil, wholeLabeling().Set})
	label(ctx, t, s, catalog.Labeling{Set: map[string]string{"zone": "a2", "rack": "7"}, Remove: []string{"1", "rack", "absent"}}, a)
	equal(t, "labels after a change", labelsOf(ctx, t, s, a, b), []map[string]string{{"zone": "a2", "empty": "", "rack": "7"}, wholeLabeling().Set})
	label(ctx, t, s, catalog.Labeling{Remove: []string{"zone", "1", "empty", "rack"}}, a, b)
	equal(t, "labels after the last was removed", labelsOf(ctx, t, s, a, b), []map[string]string{nil, nil})
}

func labelsBounded(ctx context.Context, t T, s Subject) {
	a, b := host(0, 1), host(0, 2)
	full := catalog.Labeling{Set: map[string]string{}}
	for i := range catalog.MaxLabels {
		full.Set[fmt.Sprint("l", i)] = "x"
	}
	label(ctx, t, s, full, a)
	more := catalog.Labeling{Set: map[string]string{"one": "more"}}
	equal(t, "changed", label(ctx, t, s, more, a, b), []bool{false, true})
	equal(t, "labels", labelsOf(ctx, t, s, a, b), []map[string]string{full.Set, more.Set})
	more.Remove = []string{"l0"}
	equal(t, "changed in place of another", label(ctx, t, s, more, a), []bool{true})
}

func labelsRejected(ctx context.Context, t T, s Subject) {
	for what, l := range map[string]catalog.Labeling{
		"nothing": {}, "a fact": {Set: map[string]string{"os": "linux"}}, "no key": {Set: map[string]string{"": "x"}},
		"a bad value": {Set: map[string]string{"zone": "a\n"}}, "a bad key to remove": {Remove: []string{"a b"}},
	} {
		if _, err := s.LabelHosts(ctx, []procfleet.Host{host(0, 1)}, l); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	equal(t, "labels", labelsOf(ctx, t, s, host(0, 1)), []map[string]string{nil})
}
