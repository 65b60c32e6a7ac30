package packing_test

import (
	"testing"

	"github.com/procfleet/procfleet/internal/packing"
)

func TestARecordOfAnotherFormatIsRefused(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"":     packing.ErrDamaged.Error(),
		"\x02": "a stored record has format 2, this procfleet reads format 1",
	} {
		if _, err := packing.Reading(data); err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %q", data, err, want)
		}
	}
}
