package pack

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

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
