package pack

import (
	"reflect"
	"testing"

	"github.com/procfleet/procfleet/catalog"
)

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
