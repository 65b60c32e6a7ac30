package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/procfleet/procfleet/api/v1"
)

func TestUnknownMembersAreFoundWhereverTheyAre(t *testing.T) {
	t.Parallel()
	known := membersOf(reflect.TypeFor[v1.TaskRequest]())
	for text, want := range map[string]string{
		`{}`:    "",
		" {\n}": "",
		`[]`:    "",
		`{"Action":"start","HOSTS":[],"\u0061ction":"stop"}`:                                                             "",
		`{"process":{"labels":{"a":{"b":[{}]}},"control":{"env":{"x":"}"}}}}`:                                            "",
		`{"process":null,"operations":[null,1,"a",[],{}],"select":"a"}`:                                                  "",
		`{"a" : { "action" : [ ] } , "process" : [ { "b" : 1 } ] }`:                                                      "a",
		`{"operations":[{},{"hosts":["\"]}","\\"],"b\\\"c":"\"}","process":{"alive":{"x":-1.5e3}}},[{"y":1}]],"z":null}`: `operations[1].b\"c operations[1].process.alive.x z`,
		`{"process":{"unregistered":false},"select":{"account":"a","id":1}}`:                                             "process.unregistered select.id",
	} {
		var found []string
		for _, err := range unknownMembers([]byte(text), known) {
			found = append(found, fieldOf(err))
		}
		if got := strings.Join(found, " "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// fieldOf returns the field of an [*Error]; "" for another error.
func fieldOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Field
	}
	return ""
}

// The scan reads what encoding/json reads.
func FuzzUnknownMembers(f *testing.F) {
	f.Add([]byte(`{"process":{"labels":{"a":{"b":[{}]}},"control":{"env":{"x":"}"},"y":"\\"}},"operations":[{"z":[1,{"a":"]"}]},[]]}`))
	known := membersOf(reflect.TypeFor[v1.TaskRequest]())
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) || outOfBounds(text, 0) != nil {
			return
		}
		var fields []string
		for _, err := range unknownMembers(text, known) {
			fields = append(fields, fieldOf(err))
		}
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		var want []string
		if isObject(text) {
			want = unknownByTokens(t, decoder, known, "")
		}
		if got := fmt.Sprint(fields); len(fields) <= maxProblems && got != fmt.Sprint(want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	})
}

// unknownByTokens finds the fields of unknown members with a decoder of encoding/json.
func unknownByTokens(t *testing.T, decoder *json.Decoder, known *members, path string) (found []string) {
	t.Helper()
	token, err := decoder.Token()
	if err != nil {
		t.Fatal(err)
	}
	delim, _ := token.(json.Delim)
	for i := 0; delim != 0 && decoder.More(); i++ {
		below, at := (*members)(nil), ""
		if delim == '[' {
			if known != nil {
				below, at = known.each, fmt.Sprintf("%s[%d]", path, i)
			}
		} else {
			token, err := decoder.Token()
			if err != nil {
				t.Fatal(err)
			}
			name, _ := token.(string)
			if known != nil && known.named != nil {
				quoted, err := json.Marshal(name)
				if err != nil {
					t.Fatal(err)
				}
				var is bool
				if at, below, is = known.find(quoted); is {
					at = join(path, at)
				} else {
					found = append(found, unknown(path, name, nil).Field)
				}
			}
		}
		found = slices.Concat(found, unknownByTokens(t, decoder, below, at))
	}
	if delim != 0 {
		if _, err := decoder.Token(); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func BenchmarkUnknownMembers(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"operations":[{}`)
	for i := range 10_000 {
		fmt.Fprintf(&text, `,{"action":"start","process":{"namespace":"shop","name":"web%d","proc_name":"nginx","setup_path":"/srv/web","control":{"start":"./start.sh"}},"hosts":["0:10.0.0.1"]}`, i)
	}
	body := []byte(text.String() + `]}`)
	known := membersOf(reflect.TypeFor[v1.TaskRequest]())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if found := unknownMembers(body, known); found != nil {
			b.Fatal(found)
		}
	}
}
