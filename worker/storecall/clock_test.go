package storecall

import (
	"testing"
	"time"
)

func TestTheClockPrefersPreciseReadings(t *testing.T) {
	t.Parallel()
	c := Clock{}
	local := time.Now()
	good := reading{local: local, store: local.Add(time.Hour), error: time.Millisecond}
	c.update(good)
	c.update(reading{local: local.Add(time.Second), store: local, error: time.Second})
	if c.last != good {
		t.Error("a reading with a long round trip replaced a precise one")
	}
	if off := time.Until(c.Now()); off < time.Hour-time.Minute {
		t.Errorf("clock is %v ahead, the store's an hour", off)
	}
	old := reading{local: local.Add(2 * readingAge), store: local, error: time.Second}
	c.update(old)
	if c.last != old {
		t.Error("an old reading was kept for ever")
	}
}
