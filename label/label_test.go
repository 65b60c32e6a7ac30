package label

import (
	"strings"
	"testing"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	host := map[string]string{"zone": "a1", "os": "linux", "note": ""}
	for text, want := range map[string]bool{
		"zone=a1": true, "zone=a*": true, "zone=b1": false, "zone": true, "note": true, "note=": true, "rack": false, "rack=1": false,
		"zone!=a1": false, "zone!=b1": true, "rack!=1": true,
	} {
		f, err := ParseFilter(text)
		if err != nil || f.Matches(host) != want {
			t.Errorf("%s: %v, matches %t, want %t", text, err, !want, want)
		}
	}
}

func TestInvalidLabels(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "=x", "Zone=a", "zone!", "a,b=c", "zone=a,b", "zone=[", strings.Repeat("k", 64) + "=v", "k=" + strings.Repeat("v", 256), "k=ü"} {
		if f, err := ParseFilter(text); err == nil {
			t.Errorf("%q is the filter %+v", text, f)
		}
	}
	if _, _, err := Parse("zone"); err == nil {
		t.Error("a label without a value is accepted")
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add("zone=a*", "a1")
	f.Add("zone!=[a-z]", "b")
	f.Fuzz(func(t *testing.T, text, value string) {
		filter, err := ParseFilter(text)
		if err == nil && filter.Matches(map[string]string{filter.Key: value}) == filter.Matches(nil) && !filter.Any && filter.Pattern == value && !strings.ContainsAny(value, `*?[\`) {
			t.Errorf("%q does not distinguish a host with the label from one without", text)
		}
	})
}
