package templates

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/catalog"
)

func named(id int64, name string, more ...string) *catalog.Template {
	set := map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(name)}
	for i, a := range []catalog.Attribute{catalog.AttrFuncID, catalog.AttrArgsPattern, catalog.AttrFuncName} {
		if i < len(more) {
			set[a] = catalog.Text(more[i])
		}
	}
	return &catalog.Template{ID: id, Values: catalog.WithDefaults(set), CreatedAt: at(0), ChangedAt: at(0)}
}

func rename(id int64, name string) catalog.Edit {
	return catalog.Edit{ID: id, Set: map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(name)}}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	for n, test := range []struct {
		template *catalog.Template
		want     int
	}{
		{named(1, "a"), 1}, {named(1, "a", "id"), 2}, {named(1, "a", "", "pattern"), 2}, {named(1, "a", "id", "pattern", "program"), 3},
	} {
		if got := Claims(test.template); len(got) != test.want {
			t.Errorf("%d: claims %q", n, got)
		}
	}
	set := catalog.Unique()[2]
	if got := claimedBy(Claims(named(1, "a", "", "p", "f"))[1]); !slices.Equal(got, set) {
		t.Errorf("claimed by %v", got)
	}
	if claimedBy("9 1:a") != nil || claimedBy("") != nil {
		t.Error("a claim of nothing is of something")
	}
}

// Two templates have a claim in common only if all values of a set are equal.
func TestClaimsAreUnambiguous(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.SampledFrom([]rune("1: 2a")), 1, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		a := named(1, text.Draw(t, "name"), text.Draw(t, "id"), text.Draw(t, "pattern"), text.Draw(t, "program"))
		b := named(2, text.Draw(t, "name"), text.Draw(t, "id"), text.Draw(t, "pattern"), text.Draw(t, "program"))
		ofA, ofB := Claims(a), Claims(b)
		for i, set := range catalog.Unique() {
			equal := !slices.ContainsFunc(set, func(attribute catalog.Attribute) bool { return a.Values[attribute] != b.Values[attribute] })
			if (ofA[i] == ofB[i]) != equal || slices.Contains(ofB, ofA[i]) != equal {
				t.Fatalf("%q and %q", ofA, ofB)
			}
		}
	})
}

func TestABatchSaysWhatChangesHands(t *testing.T) {
	t.Parallel()
	a, b, c := named(1, "a", "id"), named(2, "b"), named(3, "c")
	next := int64(9)
	newID := func() int64 { next++; return next }
	edits := []catalog.Edit{rename(1, "b"), rename(2, "a"), {ID: 3, Bind: []string{"n", "m", "n"}, Unbind: []string{"x"}}, rename(0, "new"), rename(0, "other")}
	batch, err := Do(edits, []*catalog.Template{a, b, c, nil, nil}, newID, at(7))
	if err != nil {
		t.Fatal(err)
	}
	if len(batch.Released) != 0 {
		t.Errorf("released %q", batch.Released)
	}
	var claimed []string
	for _, claim := range batch.Claimed {
		claimed = append(claimed, batch.Templates[claim.Edit].Name()+map[bool]string{true: " moved"}[claim.Moved])
	}
	if want := []string{"b moved", "a moved", "new", "other"}; !slices.Equal(claimed, want) {
		t.Errorf("claimed %q, not %q", claimed, want)
	}
	done := []catalog.Edited{{ID: 1}, {ID: 2}, {ID: 3, Bound: []string{"m", "n"}}, {ID: 10}, {ID: 11}}
	if !reflect.DeepEqual(batch.Done, done) {
		t.Errorf("done %+v, not %+v", batch.Done, done)
	}
	if a.Name() != "a" || c.Modules != nil {
		t.Error("what was given has changed")
	}
	if bound := batch.Templates[2]; !bound.ChangedAt.Equal(at(0)) || !batch.Templates[0].ChangedAt.Equal(at(7)) || !batch.Templates[0].CreatedAt.Equal(at(0)) {
		t.Errorf("moments are wrong: %+v", batch.Templates)
	}
	duplicate, _ := errors.AsType[*catalog.DuplicateError](batch.Taken(batch.Claimed[2], 77))
	if duplicate == nil || duplicate.Of != 77 || !slices.Equal(duplicate.Attributes, []catalog.Attribute{catalog.AttrName}) {
		t.Errorf("taken: %v", duplicate)
	}
}

func TestABatchReleasesClaims(t *testing.T) {
	t.Parallel()
	a := named(1, "a", "id", "pattern", "program")
	edit := rename(1, "b")
	edit.Set[catalog.AttrFuncID] = catalog.Value{}
	batch, err := Do([]catalog.Edit{edit}, []*catalog.Template{a}, nil, at(1))
	if err != nil {
		t.Fatal(err)
	}
	if want := Claims(a)[:2]; !slices.Equal(batch.Released, want) {
		t.Errorf("released %q, not %q", batch.Released, want)
	}
	if len(batch.Claimed) != 1 || batch.Claimed[0].Moved || !strings.Contains(batch.Claimed[0].Text, "b") {
		t.Errorf("claimed %+v", batch.Claimed)
	}
}

func TestBatchesThatCannotBe(t *testing.T) {
	t.Parallel()
	full := named(1, "a")
	for n := range catalog.MaxBound {
		full.Modules = append(full.Modules, string(rune('a'))+string(rune(0x4e00+n)))
	}
	newID := func() int64 { t.Error("an id is wasted"); return 1 }
	for problem, test := range map[string]struct {
		edits []catalog.Edit
		old   []*catalog.Template
	}{
		"process 2: there is no such process":                                {[]catalog.Edit{rename(1, "b"), rename(2, "c")}, []*catalog.Template{named(1, "a"), nil}},
		"process 2: process 1 has the same name":                             {[]catalog.Edit{rename(1, "c"), rename(2, "c")}, []*catalog.Template{named(1, "a"), named(2, "b")}},
		"process 2: process 1 has the same name, which it keeps":             {[]catalog.Edit{rename(2, "a"), {ID: 1}}, []*catalog.Template{named(2, "b"), named(1, "a")}},
		"new process 1 of the request: another process of the request has":   {[]catalog.Edit{rename(0, "c"), rename(0, "c")}, []*catalog.Template{nil, nil}},
		"process 1: bind: makes it 10001 modules: at most 10000 are allowed": {[]catalog.Edit{{ID: 1, Bind: []string{"a" + string(rune(0x4e00)), "b"}}}, []*catalog.Template{full}},
	} {
		_, err := Do(test.edits, test.old, newID, at(1))
		if _, ok := errors.AsType[*catalog.EditError](err); !ok || !strings.HasPrefix(err.Error(), strings.TrimSuffix(problem, ", which it keeps")) {
			t.Errorf("%v, not %q", err, problem)
		}
	}
}
