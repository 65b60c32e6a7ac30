package recent

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

func TestOnlyWhatWasUsedLatelyIsKept(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_790_000_000, 0)
	r := New(func() *int { return new(int) })
	use := func(n int, at time.Duration) *int {
		return r.Use(catalog.Business{Account: catalog.DefaultAccount, ID: int64(n)}, start.Add(at))
	}
	first := use(1, 0)
	for n := range Most {
		use(n+2, time.Duration(n)*time.Millisecond)
		if use(1, time.Duration(n)*time.Millisecond) != first {
			t.Fatal("what was used all the time was forgotten")
		}
	}
	if len(r.of) != Most || r.Kept(catalog.Business{Account: catalog.DefaultAccount, ID: 2}) != nil {
		t.Errorf("%d are kept, or what was used longest ago is", len(r.of))
	}
	use(1, For)
	r.Forget(start.Add(For + 500*time.Millisecond))
	if want := Most / 2; len(r.of) != want || use(1, For) != first {
		t.Errorf("%d are kept, want %d, with what was just used", len(r.of), want)
	}
}
