package dialect

import (
	"errors"
	"testing"
)

// "module" instead of "modules" would operate the processes on the hosts of all
// modules.
func TestAMisspeltFilterOfASelectionIsRefused(t *testing.T) {
	t.Parallel()
	for text, unknown := range map[string]string{
		`{"name":"nginx","module":["web"]}`:                                  "module",
		`{"name":"nginx","set":["s1"],"modules":["web"]}`:                    "set",
		`{"processes":[1],"ids":null}`:                                       "ids",
		`{"processes":[1],"sets":["s1"],"modules":["web"],"account":"acme"}`: "",
		`{"name":"nginx"}`:                                                   "",
	} {
		body := `{"action":"stop","business":"2","select":` + text + `}`
		_, err := endpointOf(t, "native").(Accept).Decode(&Request{Body: []byte(body)})
		failure, _ := errors.AsType[*Error](err)
		switch {
		case unknown == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case unknown != "" && (failure == nil || failure.Kind != InvalidField || failure.Field != "select."+unknown):
			t.Errorf("%s: %v", text, err)
		}
	}
}
