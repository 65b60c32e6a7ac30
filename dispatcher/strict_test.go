package dispatcher

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A misspelled optional member or parameter would otherwise have no effect,
// and the caller would not notice. What the description names is known.
func TestAnUnknownParameterOrMemberOfEveryNativeCallIsRefused(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	var document struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
			Body       *struct{} `json:"requestBody"`
		}
	}
	if err := json.Unmarshal([]byte(d.call(http.MethodGet, "/openapi.json", "").text), &document); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("{biz}", "2", "tasks/{id}", "tasks/GSETASK:20200318203203:57196", "{id}", "44")
	calls, parameters, bodies := 0, 0, 0
	for path, byMethod := range document.Paths {
		if !strings.HasPrefix(path, "/v1/") {
			continue
		}
		for method, operation := range byMethod {
			calls++
			method, at := strings.ToUpper(method), fill.Replace(path)
			refuses := func(query, body, field string) bool {
				a := d.call(method, at+query, body)
				return a.status == http.StatusBadRequest && strings.Contains(a.text, field+": unknown")
			}
			body := ""
			if operation.Body != nil {
				bodies++
				body = "{}"
				if !refuses("", `{"strange":{"strange":1}}`, "strange") {
					t.Errorf("%s %s accepts an unknown member", method, path)
				}
			}
			if !refuses("?strange=1", body, "strange") {
				t.Errorf("%s %s accepts an unknown parameter", method, path)
			}
			for _, p := range operation.Parameters {
				if p.In != "query" {
					continue
				}
				parameters++
				if refuses("?"+p.Name+"=1", body, p.Name) {
					t.Errorf("%s %s does not know its parameter %s", method, path, p.Name)
				}
			}
		}
	}
	if calls < 25 || parameters < 25 || bodies < 12 {
		t.Errorf("only %d calls with %d parameters and %d bodies", calls, parameters, bodies)
	}
}

func TestKeysOfLabelsAndOfTheEnvironmentAreTheCallers(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	body := strings.Replace(nativeBody("0:10.0.0.1"), `"proc_name"`, `"labels":{"stopp":"a"},"control":{"env":{"stopp":"a"}},"proc_name"`, 1)
	if a := d.call(http.MethodPost, nativePath, body); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// One round trip names every problem, within bounds.
func TestAnErrorListsAllProblemsOfANativeRequest(t *testing.T) {
	t.Parallel()
	d := startServer(t, testConfig(t), openStore(t), &fakeQueue{})
	message := func(members, hosts int) string {
		var b strings.Builder
		for i := range members {
			fmt.Fprintf(&b, `"member%d":{"a":[1,"}",{}]},`, i)
		}
		b.WriteString(`"hosts":["0:10.0.0.1"`)
		for i := range hosts {
			fmt.Fprintf(&b, `,"host%d"`, i)
		}
		a := d.call(http.MethodPut, "/v1/registrations", `{`+b.String()+`],"process":{"name":"web","setup_path":"srv"}}`)
		failure, _ := a.body["error"].(map[string]any)
		text, _ := failure["message"].(string)
		if a.status != http.StatusBadRequest || text == "" {
			t.Fatalf("%d %s", a.status, a.text)
		}
		return text
	}
	few := message(2, 2)
	for _, path := range []string{"member0: ", "\nmember1: ", "\nprocess.namespace: ", "\nhosts[1]: ", "\nhosts[2]: "} {
		if !strings.Contains(few, path) {
			t.Errorf("%q is not in %q", path, few)
		}
	}
	if strings.Contains(few, "more problems") {
		t.Errorf("%q counts problems instead of listing them", few)
	}
	for name, many := range map[string]string{"members": message(1000, 0), "hosts": message(0, 1000)} {
		if lines := strings.Count(many, "\n"); lines != 20 || len(many) > 5<<10 || !strings.HasSuffix(many, "more problems)") {
			t.Errorf("%s: %d line breaks, %d bytes: %q", name, lines, len(many), many)
		}
	}
	if long := message(3, 0); len(long) > 5<<10 {
		t.Errorf("%d bytes", len(long))
	}
	a := d.call(http.MethodPut, "/v1/registrations", `{"`+strings.Repeat("x", 100_000)+`":1,"\u0000\"":1}`)
	if a.status != http.StatusBadRequest || len(a.text) > 5<<10 {
		t.Errorf("a long name: %d, %d bytes", a.status, len(a.text))
	}
}
