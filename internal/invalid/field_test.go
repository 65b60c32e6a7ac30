package invalid_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/procfleet/procfleet/internal/invalid"
)

func TestFieldsAreFoundInWhateverJoinsAndWrapsThem(t *testing.T) {
	t.Parallel()
	other := errors.New("and another thing")
	err := fmt.Errorf("worker: %w", errors.Join(
		invalid.Fieldf("Limits.Items", "is %d", 0), other, errors.Join(invalid.Fieldf("Addr", "is missing"))))
	fields, rest := invalid.Fields(errors.Join(err))
	if len(fields) != 2 || fields[0].Name != "Limits.Items" || fields[1].Name != "Addr" {
		t.Errorf("fields %v", fields)
	}
	if len(rest) != 1 || !errors.Is(rest[0], other) {
		t.Errorf("rest %v", rest)
	}
	if text := fields[0].Error(); text != "Config.Limits.Items: is 0" {
		t.Errorf("said %q", text)
	}
}

func TestNothingWrongIsNoField(t *testing.T) {
	t.Parallel()
	if fields, rest := invalid.Fields(nil); fields != nil || rest != nil {
		t.Errorf("%v %v", fields, rest)
	}
}
