package pack

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
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

// Every attribute must be written, in its own position.
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

func TestEveryFieldOfATopologyIsKept(t *testing.T) {
	t.Parallel()
	var want catalog.Topology
	fill(reflect.ValueOf(&want).Elem(), 1)
	want.Sets = append(want.Sets, catalog.Set{Name: "without modules"})
	want.Sets[0].Modules[0].Hosts = nil
	packed := string(Topology(&want))
	if got, err := ReadTopology(want.Version, packed); err != nil || !reflect.DeepEqual(got, &want) {
		t.Errorf("%v, %+v, want %+v", err, got, want)
	}
	for n := range len(packed) - 1 { // without the last byte, which is a zero, it is the same
		if got, err := ReadTopology(want.Version, packed[:n]); err == nil && reflect.DeepEqual(got, &want) {
			t.Errorf("%d bytes of %d are read as all", n, len(packed))
		}
	}
	if _, err := ReadTopology(1, "\xff"+packed[1:]); err == nil {
		t.Error("a topology of a later format is read")
	}
}

func BenchmarkReadTopology(b *testing.B) {
	m := catalog.Module{Name: "web"}
	for i := range 500_000 {
		m.Hosts = append(m.Hosts, host(i))
	}
	packed := string(Topology(&catalog.Topology{Sets: []catalog.Set{{Name: "s", Modules: []catalog.Module{m}}}}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadTopology(1, packed); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(packed)), "bytes")
}

// Values of labels have markup in them and more digits than a number keeps.
func TestLabelsComeBackAsTheyAre(t *testing.T) {
	t.Parallel()
	labels := map[string]json.RawMessage{}
	for i, raw := range []string{`"<a & b>"`, `"\u4e2d\/"`, "\"\u2028\"", `1.50`, `-1E+400`, `123456789012345678901234567890`, `null`, `true`} {
		labels[fmt.Sprint("label <", i, ">")] = json.RawMessage(raw)
	}
	spec := procfleet.ProcessSpec{Namespace: "shop", Name: "web", Labels: labels}
	packed, err := Spec(&spec)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSpec(packed); err != nil || !reflect.DeepEqual(got, spec) {
		t.Errorf("spec: %v, %+v", err, got)
	}
	g := catalog.HostGroups{Host: host(1), Namespace: "shop", Name: "web", Labels: labels, Groups: []catalog.Group{{ID: "<g>", CPULimit: 0.1, MemoryByLimit: true}}}
	if packed, err = Groups(&g); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadGroups(g.Host, g.Namespace, packed); err != nil || !reflect.DeepEqual(got, g) {
		t.Errorf("groups: %v, %+v", err, got)
	}
}
