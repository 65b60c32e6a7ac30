package pack

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet/catalog"
)

func anyTemplate() *catalog.Template {
	created := time.Date(2026, 7, 1, 12, 0, 0, 123456000, time.UTC)
	t := &catalog.Template{
		ID: math.MaxInt64, CreatedAt: created, ChangedAt: created.Add(time.Hour + time.Microsecond),
		Modules: []string{"db", "web \x01 中文"}, Values: map[catalog.Attribute]catalog.Value{},
	}
	for i, rule := range catalog.AttributeRules() {
		t.Values[rule.Attribute] = []catalog.Value{
			catalog.Text(fmt.Sprint("text ", i)), catalog.Number(int64(-i)), catalog.Truth(true), catalog.Truth(false), {}, catalog.Text(""),
		}[i%6]
	}
	return t
}

func TestTemplatesKeepEverything(t *testing.T) {
	t.Parallel()
	want := anyTemplate()
	got, err := ReadTemplate(string(Template(want)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b catalog.Value) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestTemplatesThatAreDamaged(t *testing.T) {
	t.Parallel()
	whole := Template(anyTemplate())
	for n := range whole { // cut short it may be a template that had fewer attributes
		if got, err := ReadTemplate(string(whole[:n])); err == nil && len(got.Values) != len(packedAttributes) {
			t.Errorf("of %d bytes %d values are read", n, len(got.Values))
		}
	}
	for n := range whole {
		damaged := []byte(string(whole))
		damaged[n] ^= 0xff
		_, _ = ReadTemplate(string(damaged)) // it must not panic
	}
	if _, err := ReadTemplate("\x02" + string(whole[1:])); err == nil {
		t.Error("another version was read")
	}
}

// Every attribute must be written, and none in the place of another.
func TestTemplatesHaveAllAttributes(t *testing.T) {
	t.Parallel()
	packed := map[catalog.Attribute]bool{}
	for _, a := range packedAttributes {
		packed[a] = true
	}
	for _, rule := range catalog.AttributeRules() {
		if !packed[rule.Attribute] {
			t.Errorf("%s is not packed: append it to the list", rule.Attribute)
		}
	}
	if packedAttributes[0] != catalog.AttrName || packedAttributes[20] != catalog.AttrArgsPattern {
		t.Error("attributes that were written before have moved")
	}
}

func BenchmarkReadTemplate(b *testing.B) {
	data := string(Template(anyTemplate()))
	b.ReportMetric(float64(len(data)), "bytes")
	for b.Loop() {
		if _, err := ReadTemplate(data); err != nil {
			b.Fatal(err)
		}
	}
}
