package dispatcher

import (
	"reflect"
	"testing"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// actionOf returns the action that an endpoint requires of every caller.
func actionOf(t *testing.T, d dialect.Endpoint) string {
	t.Helper()
	byKind, err := endpointsByKind(endpoints())
	if err != nil {
		t.Fatal(err)
	}
	return byKind[reflect.TypeOf(d)].action
}
