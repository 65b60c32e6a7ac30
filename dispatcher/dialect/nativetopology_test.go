package dialect

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func decodedTopology(contentType, body string) (TopologyChange, error) {
	return decodeTopology(&Request{Wildcards: map[string]string{"biz": "2"}, ContentType: contentType, Body: []byte(body)})
}

// A text with more entries than a topology may have is rejected before it is decoded into values many
// times its size.
func TestATextThatIsLargerThanAnyTopologyIsRefused(t *testing.T) {
	t.Parallel()
	lines := func(n int, line func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	const head = "set,module,host\n"
	for name, c := range map[string]struct {
		contentType, body string
		refused           Kind
		field             string
	}{
		"CSV of modules":       {"text/csv", head + lines(catalog.MaxModules+1, func(i int) string { return fmt.Sprintf("s,m%d,\n", i) }), InvalidField, "line 50002, module"},
		"CSV of sets":          {"text/csv", head + lines(catalog.MaxSets+1, func(i int) string { return fmt.Sprintf("s%d,,\n", i) }), InvalidField, "line 10002, set"},
		"CSV of cells":         {"text/csv", head + strings.Repeat(",", maxCells), TooLarge, "body"},
		"YAML of maps":         {"text/yaml", "sets: [" + strings.Repeat("{},", maxYAMLMarks/2) + "]", TooLarge, "body"},
		"YAML that nests":      {"text/yaml", strings.Repeat("- ", maxYAMLMarks/2), Malformed, "body"},
		"YAML that multiplies": {"text/yaml", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\nsets: []\n", Malformed, "body"},
	} {
		_, err := decodedTopology(c.contentType, c.body)
		if failure, _ := errors.AsType[*Error](err); failure == nil || failure.Kind != c.refused || failure.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The same topology in any of the forms decodes into the same value.
func TestATopologyMeansTheSameInEveryForm(t *testing.T) {
	t.Parallel()
	want, err := decodedTopology("application/json", `{"sets":[
		{"name":"a, \"b\"","modules":[{"name":"8080","default":7,"hosts":["0:10.0.0.1","3:fd00::1"]},{"name":"yes"}]},
		{"name":"模块"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for kind, text := range map[string]string{
		"text/yaml; charset=utf-8": `sets:
- name: 'a, "b"'
  modules:
  - {name: "8080", default: 7, hosts: ["0:10.0.0.1", "3:fd00::1"]}
  - name: "yes"
- name: 模块
`,
		"text/csv;header=present": "Set,Module,Default,Host\r\n" +
			"\"a, \"\"b\"\"\",8080,,0:10.0.0.1\r\n\"a, \"\"b\"\"\",yes,,\r\n模块,,,\r\n\"a, \"\"b\"\"\",8080,7,3:fd00::1\r\n",
	} {
		got, err := decodedTopology(kind, text)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		diff := cmp.Diff(want, got, cmp.Comparer(func(a, b procfleet.Host) bool { return a == b }), cmp.Transformer("hosts", func(hosts []procfleet.Host) string { return fmt.Sprint(hosts) }))
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
}

// If a file with several documents were accepted, only the first would be read, and the sets of the
// others would be removed.
func TestATopologyOfSeveralYAMLDocumentsIsRefused(t *testing.T) {
	t.Parallel()
	for text, several := range map[string]bool{
		"sets: [{name: a}]\n---\nsets: [{name: b}]\n":          true,
		"---\nsets: [{name: a}]\n--- # b\nsets: []\n":          true,
		"sets: [{name: a}]\r\n---\r\nsets: []\r\n":             true,
		"sets: [{name: a}]\n...\n---\nsets: []\n":              true,
		"--- {sets: []}\n--- {sets: []}\n":                     true,
		"---\nsets: [{name: a}]\n":                             false,
		"\ufeff# of shop\n%YAML 1.1\n---\nsets: [{name: a}]\n": false,
		"sets: [{name: a}]\n---\n# no more\n":                  false,
		"sets: [{name: a}]\n...\n":                             false,
		"sets:\n- name: ---a\n- name: \"b ---\"\n":             false,
	} {
		_, err := decodedTopology("application/yaml", text)
		failure, _ := errors.AsType[*Error](err)
		if several && (failure == nil || failure.Kind != Malformed || failure.Field != "body") || !several && err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// "host" instead of "hosts" would leave the module without any.
func TestAMisspeltMemberOfATopologyIsRefused(t *testing.T) {
	t.Parallel()
	for body, unknown := range map[string]string{
		`{"sets":[{"name":"s1","modules":[{"name":"web","host":["0:10.0.0.1"]}]}]}`:                                 "sets[0].modules[0].host",
		`{"sets":[{"name":"s1","module":[]}]}`:                                                                      "sets[0].module",
		`{"sets":[{"name":"s1","modules":[{"name":"web","default":0,"hosts":["0:10.0.0.1"]}]}],"without_agent":[]}`: "",
	} {
		_, err := decodeTopology(&Request{Wildcards: map[string]string{"biz": "2"}, Body: []byte(body)})
		failure, _ := errors.AsType[*Error](err)
		switch {
		case unknown == "" && err != nil:
			t.Errorf("%s: %v", body, err)
		case unknown != "" && (failure == nil || failure.Kind != InvalidField || failure.Field != unknown):
			t.Errorf("%s: %v", body, err)
		}
	}
}
