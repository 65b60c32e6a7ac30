package catalog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

func TestValuesAreChecked(t *testing.T) {
	t.Parallel()
	text, number, nothing := catalog.Text, catalog.Number, catalog.Value{}
	long := func(n int) catalog.Value { return text(strings.Repeat("x", n)) }
	tests := []struct {
		attribute catalog.Attribute
		value     catalog.Value
		fault     catalog.Fault // "" is none
	}{
		{catalog.AttrName, text("nginx"), ""},
		{catalog.AttrName, long(catalog.MaxText), ""},
		{catalog.AttrName, long(catalog.MaxText + 1), catalog.FaultLimit},
		{catalog.AttrName, text(strings.Repeat("进", 86)), catalog.FaultLimit}, // 258 bytes
		{catalog.AttrName, text(""), catalog.FaultMissing},
		{catalog.AttrName, nothing, catalog.FaultMissing},
		{catalog.AttrName, number(1), catalog.FaultNotText},
		{catalog.AttrName, text("a\xff"), catalog.FaultInvalid},
		{catalog.AttrName, text("a\x00b"), catalog.FaultInvalid},
		{catalog.AttrDescription, nothing, ""},
		{catalog.AttrDescription, text(""), ""},
		{catalog.AttrDescription, catalog.Truth(true), catalog.FaultNotText},
		{catalog.AttrWorkPath, long(catalog.MaxLongText), ""},
		{catalog.AttrWorkPath, long(catalog.MaxLongText + 1), catalog.FaultLimit},
		{catalog.AttrBindIP, text("4"), ""},
		{catalog.AttrBindIP, text("5"), catalog.FaultInvalid},
		{catalog.AttrBindIP, text(""), ""},
		{catalog.AttrBindIP, nothing, ""},
		{catalog.AttrProtocol, number(1), catalog.FaultNotText},
		{catalog.AttrProtocol, text("TCP"), catalog.FaultInvalid},
		{catalog.AttrInstances, number(1), ""},
		{catalog.AttrInstances, number(catalog.MostNumber), ""},
		{catalog.AttrInstances, number(0), catalog.FaultLimit},
		{catalog.AttrInstances, number(-1), catalog.FaultLimit},
		{catalog.AttrInstances, number(catalog.MostNumber + 1), catalog.FaultLimit},
		{catalog.AttrInstances, text("1"), catalog.FaultNotNumber},
		{catalog.AttrInstances, text(""), ""},
		{catalog.AttrAutoStart, catalog.Truth(true), ""},
		{catalog.AttrAutoStart, nothing, ""},
		{catalog.AttrAutoStart, number(1), catalog.FaultNotTruth},
		{catalog.AttrAutoStart, text("true"), catalog.FaultNotTruth},
		{catalog.AttrID, number(1), catalog.FaultUnknown},
		{"", text("x"), catalog.FaultUnknown},
		{"colour", text("x"), catalog.FaultUnknown},
	}
	for _, test := range tests {
		err := catalog.CheckValues(values{test.attribute: test.value}, false)
		checkFault(t, fmt.Sprintf("%s: %.20s", test.attribute, test.value), err, test.attribute, test.fault)
	}
}

func checkFault(t *testing.T, what string, err error, attribute catalog.Attribute, want catalog.Fault) {
	t.Helper()
	wrong, _ := errors.AsType[*catalog.ValueError](err)
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want == "":
	case wrong == nil || wrong.Attribute != attribute || wrong.Fault != want:
		t.Errorf("%s: %v, not %s", what, err, want)
	}
}

func TestPortsAreAList(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"": true, "1": true, "8080": true, "65535": true, "8080-8089": true, "8080-8089,8199": true, "1,2,3-4,5": true, "9-3": true,
		"0": false, "65536": false, "080": false, " 80": false, "80 ": false, "80,": false, ",80": false, "80,,81": false, "-": false,
		"80-": false, "-80": false, "80-90-100": false, "+80": false, "8_0": false, "1.5": false, "http": false, "８０": false,
		"80\n": false, "80-090": false, "99999999999999999999": false,
	} {
		fault := catalog.FaultPorts
		if ok {
			fault = ""
		}
		checkFault(t, fmt.Sprintf("port %q", text), catalog.CheckValues(values{catalog.AttrPort: catalog.Text(text)}, false), catalog.AttrPort, fault)
	}
	for port, fault := range map[int64]catalog.Fault{1: "", 80: "", 65535: "", 0: catalog.FaultPorts, -80: catalog.FaultPorts, 65536: catalog.FaultPorts} {
		checkFault(t, fmt.Sprint("port ", port), catalog.CheckValues(values{catalog.AttrPort: catalog.Number(port)}, false), catalog.AttrPort, fault)
	}
	checkFault(t, "a port of truth", catalog.CheckValues(values{catalog.AttrPort: catalog.Truth(true)}, false), catalog.AttrPort, catalog.FaultNotText)
	many := catalog.Text(strings.Repeat("1,", 128) + "1")
	checkFault(t, "257 bytes of ports", catalog.CheckValues(values{catalog.AttrPort: many}, false), catalog.AttrPort, catalog.FaultLimit)
}

func TestTheFirstFaultIsReported(t *testing.T) {
	t.Parallel()
	given := values{catalog.AttrTimeout: catalog.Text("x"), catalog.AttrPort: catalog.Text("x"), "b": {}, "a": {}}
	checkFault(t, "no name of a new one", catalog.CheckValues(given, true), catalog.AttrName, catalog.FaultMissing)
	for _, a := range []catalog.Attribute{catalog.AttrPort, catalog.AttrTimeout, "a", "b"} {
		err := catalog.CheckValues(given, false)
		wrong, _ := errors.AsType[*catalog.ValueError](err)
		if wrong == nil || wrong.Attribute != a {
			t.Fatalf("%v, not of %s", err, a)
		}
		delete(given, a)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	got := catalog.WithDefaults(values{catalog.AttrName: catalog.Text("web"), catalog.AttrProtocol: {}, catalog.AttrFuncName: catalog.Text("")})
	want := values{
		catalog.AttrName: catalog.Text("web"), catalog.AttrFuncName: catalog.Text("web"), catalog.AttrProtocol: {}, catalog.AttrBindIP: {},
		catalog.AttrInstances: {}, catalog.AttrPriority: {}, catalog.AttrTimeout: {}, catalog.AttrAutoStartGap: {}, catalog.AttrAutoStart: catalog.Truth(false),
	}
	for _, rule := range catalog.AttributeRules() {
		expected, special := want[rule.Attribute]
		if !special {
			expected = catalog.Text("")
		}
		if v, there := got[rule.Attribute]; !there || v != expected {
			t.Errorf("%s is %v", rule.Attribute, v)
		}
	}
	if err := catalog.CheckValues(got, true); err != nil {
		t.Error(err)
	}
	if v := catalog.WithDefaults(values{catalog.AttrName: catalog.Text("web")})[catalog.AttrProtocol]; v != catalog.Text("1") {
		t.Errorf("the protocol is %v", v)
	}
}

func TestEditsAreChecked(t *testing.T) {
	t.Parallel()
	name := values{catalog.AttrName: catalog.Text("web")}
	long := strings.Repeat("m", catalog.MaxModuleBytes+1)
	for problem, edits := range map[string][]catalog.Edit{
		"":                                   {{Set: name, Bind: []string{"m", "m"}}, {ID: 7}, {Set: name, Unbind: []string{"x"}}},
		"new process 0 of the request: name": {{Set: values{}}},
		"process 7: name":                    {{ID: 8}, {ID: 7, Set: values{catalog.AttrName: {}}}},
		"edited twice":                       {{ID: 7}, {ID: 7}},
		"no such process":                    {{ID: -1}},
		"bind[1]: is empty":                  {{ID: 7, Bind: []string{"m", ""}}},
		"bind[0]: is not valid UTF-8":        {{ID: 7, Bind: []string{"\xff"}}},
		"unbind[0]: contains a NUL":          {{ID: 7, Unbind: []string{"\x00"}}},
		"unbind[0]: is 257 bytes":            {{ID: 7, Unbind: []string{long}}},
		"unbind[1]: is also":                 {{ID: 7, Bind: []string{"m"}, Unbind: []string{"n", "m"}}},
		"bind: 10001 modules":                {{ID: 7, Bind: make([]string, catalog.MaxBound+1)}},
		"edits: 1001":                        make([]catalog.Edit, catalog.MaxEdits+1),
	} {
		err := catalog.ValidateEdits(edits)
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%v, not %q", err, problem)
		}
	}
	if err := catalog.ValidModule(long); err == nil {
		t.Error("a module may have a long name")
	}
}

func TestSearchesAreChecked(t *testing.T) {
	t.Parallel()
	is := func(a catalog.Attribute, c catalog.Comparison, n int) catalog.Search {
		return catalog.Search{Limit: 1, Conditions: []catalog.Condition{{Attribute: a, Comparison: c, Values: make([]catalog.Value, n)}}}
	}
	for field, searches := range map[string][]catalog.Search{
		"": {
			{Limit: 1},
			{Limit: catalog.MaxTemplatePage, Start: 1 << 40, Sort: catalog.AttrChangedAt},
			{Limit: 1, Sort: catalog.AttrPort},
			is(catalog.AttrModule, catalog.Is, 1), is(catalog.AttrID, catalog.In, 0), is(catalog.AttrUser, catalog.NotIn, catalog.MaxConditionValues),
		},
		"limit":                    {{}, {Limit: -1}, {Limit: catalog.MaxTemplatePage + 1}},
		"start":                    {{Limit: 1, Start: -1}},
		"sort":                     {{Limit: 1, Sort: "colour"}, {Limit: 1, Sort: catalog.AttrModule}},
		"conditions":               {{Limit: 1, Conditions: make([]catalog.Condition, catalog.MaxConditions+1)}},
		"conditions[0].attribute":  {is("colour", catalog.Is, 1), is("", catalog.Is, 1)},
		"conditions[0].comparison": {is(catalog.AttrName, "like", 1), is(catalog.AttrName, "", 1)},
		"conditions[0].values":     {is(catalog.AttrName, catalog.Is, 0), is(catalog.AttrName, catalog.Less, 2), is(catalog.AttrName, catalog.In, catalog.MaxConditionValues+1)},
	} {
		for _, s := range searches {
			err := s.Validate()
			wrong, _ := errors.AsType[*procfleet.FieldError](err)
			if wrong == nil && (field != "" || err != nil) || wrong != nil && wrong.Field != field {
				t.Errorf("%.200v: %v, not of %q", s, err, field)
			}
		}
	}
}
