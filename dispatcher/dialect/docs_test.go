package dialect

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every call accepts the example requests of its documentation.
func TestDocumentedRequestsAreAccepted(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/reference/api*.md")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, page := range pages {
		of, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, of...)
	}
	examples := regexp.MustCompile("(?s)<!-- call: (\\S+) -->\n```json\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	shown := make(map[string]bool)
	for _, example := range examples {
		call, body := example[1], example[2]
		shown[call] = true
		if _, ok := decodeAsked(t, endpointOf(t, call), &Request{Method: http.MethodPost, Wildcards: someWildcards("2"), Body: []byte(body)}); !ok {
			t.Errorf("%s refuses\n%s", call, body)
		}
	}
	for _, call := range []string{"native", "gse.operate_proc_multi", "job.operate_process"} {
		if !shown[call] {
			t.Errorf("no example of %s", call)
		}
	}
	for _, d := range All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				path, _, _ := strings.Cut(call.Name, ".")
				if path == "native" {
					path = call.Paths[0]
				} else {
					path = strings.TrimPrefix(call.Name, d.Name+".")
				}
				if !strings.Contains(string(text), path) {
					t.Errorf("%s is not documented", call.Name)
				}
			}
		}
	}
}

// A producer names the call of a published operation; the documentation must contain the names.
func TestEveryAcceptingCallIsNamedForProducers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/how-to/submit-operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range All() {
		for _, call := range d.Calls {
			if _, ok := call.Endpoint.(Accept); ok && !strings.Contains(string(text), "`"+call.Name+"`") {
				t.Errorf("docs/how-to/submit-operations.md does not name %s", call.Name)
			}
		}
	}
}
