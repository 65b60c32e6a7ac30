package procfleet

import (
	"encoding/json"
	"reflect"
	"testing"
)

// filled is a spec whose every field has a value that no other has.
func filled(t *testing.T, prefix string, number int) ProcessSpec {
	t.Helper()
	var s ProcessSpec
	fill(reflect.ValueOf(&s).Elem(), prefix, &number)
	s.Labels = map[string]json.RawMessage{prefix: json.RawMessage(`1`)}
	return s
}

func fill(v reflect.Value, prefix string, number *int) {
	*number++
	switch v.Kind() { //nolint:exhaustive // of a spec
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), prefix+v.Type().Field(i).Name, number)
		}
	case reflect.String:
		v.SetString(prefix)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*number))
	case reflect.Float64:
		v.SetFloat(float64(*number))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		if m, ok := reflect.TypeAssert[map[string]string](v); ok {
			m[prefix] = prefix
		}
	}
}

func TestAnOverlayTakesEachGivenFieldAndKeepsAllOthers(t *testing.T) {
	t.Parallel()
	registered, given := filled(t, "registered", 1000), filled(t, "given", 2000)
	if got := SpecFields(0).Over(&registered, &given); !reflect.DeepEqual(got, registered) {
		t.Errorf("nothing was given, and the registration became %+v", got)
	}
	seen := make(map[string]bool)
	for f := range specFieldCount {
		name := specFields[f].name
		if name == "" || seen[name] {
			t.Errorf("field %d has the name %q, which is empty or that of another", f, name)
		}
		seen[name] = true
		set := SpecFields(0).With(f, true)
		merged := set.Over(&registered, &given)
		if reflect.DeepEqual(merged, registered) {
			t.Errorf("%s was given and changed nothing", name)
		}
		if back := set.Over(&merged, &registered); !reflect.DeepEqual(back, registered) {
			t.Errorf("%s changed more than itself: %+v", name, back)
		}
	}
	all := AllSpecFields.Over(&registered, &given)
	if all.Namespace != registered.Namespace || all.ArgsPattern != registered.ArgsPattern || all.Control.Shell != registered.Control.Shell {
		t.Error("an overlay replaced what no request of this kind can give")
	}
	if text, err := json.Marshal(SpecFields(0).With(FieldProcName, true).With(FieldStop, true).With(FieldKill, false)); err != nil || string(text) != `["proc_name","control.stop"]` {
		t.Errorf("a set is written as %s, %v", text, err)
	}
}
