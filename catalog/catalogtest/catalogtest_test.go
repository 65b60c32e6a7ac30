package catalogtest_test

import (
	"testing"

	"github.com/procfleet/procfleet/catalog/catalogtest"
)

func TestTheModelPasses(t *testing.T) {
	t.Parallel()
	h := catalogtest.Harness{
		Open:   func(testing.TB) catalogtest.Store { return catalogtest.NewModel() },
		Reopen: func(_ testing.TB, old catalogtest.Store) catalogtest.Store { return old },
	}
	for _, c := range catalogtest.Checks() {
		if c.Name == "what is given and returned is not shared" {
			continue // the model shares
		}
		if err := c.Err(t.Context(), h.Subject(t)); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}
