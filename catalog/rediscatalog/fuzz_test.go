package rediscatalog

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
)

// Reads of keys with arbitrary contents return a value or an error, and do not panic.

func FuzzReadFreeze(f *testing.F) {
	f.Add("a0:10.0.0.1\x00shop", `1790000000000000{"r":"audit","b":"ann"}`)
	f.Add("\x00shop", "-790000000000000null")
	f.Fuzz(func(t *testing.T, member, value string) {
		first, err := readFreeze(member, value)
		if err != nil {
			return
		}
		second, err := readFreeze(freezeMember(first.Scope), value)
		if diff := cmp.Diff(first, second, cmpopts.EquateComparable(procfleet.Host{})); err != nil || diff != "" {
			t.Errorf("it became another: %v\n%s", err, diff)
		}
	})
}

func FuzzReadRegistration(f *testing.F) {
	f.Add("agent\x00a0:10.0.0.1", "specspecspecspec"+"1790000000000000"+"1790000000000000", []byte(`{"proc_name":"p"}`))
	f.Add("agent\x00b12:::1", "specspecspecspec"+"+790000000000000"+"                ", []byte(`null`))
	f.Fuzz(func(t *testing.T, member, value string, spec []byte) {
		ps, err := readMembers("shop", []any{member})
		if err != nil {
			return
		}
		if again, err := readMember("shop", Member(ps[0])); err != nil || again != ps[0] {
			t.Errorf("%q is read as %v, which becomes %v, %v", member, ps[0], again, err)
		}
		id := value[:min(len(value), specIDWidth)]
		found, err := readRegistrations(ps, []any{[]any{value}, []any{id}, []any{string(spec)}})
		if err == nil && (found[0] == nil || found[0].Process != ps[0]) {
			t.Errorf("registration %+v", found[0])
		}
	})
}
