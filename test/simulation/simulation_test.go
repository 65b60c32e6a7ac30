package simulation

import (
	"flag"
	"runtime/debug"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

var (
	seed    = flag.Uint64("seed", 0, "run the history of this seed alone and print it")
	first   = flag.Uint64("first", 1, "first seed")
	seeds   = flag.Uint64("seeds", 0, "number of histories; 0: as many as -for permits")
	howLong = flag.Duration("for", 20*time.Second, "time for histories, without -seeds")
	verbose = flag.Bool("roles", false, "print the logs of all roles")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The NATS server has one clock for the whole process. Its goroutine must not
	// start in a bubble.
	ats.Register()
	debug.SetGCPercent(400) // histories are short, and end with a collection
	m.Run()
}

func TestHistories(t *testing.T) {
	if *seed != 0 {
		o := explore(t, *seed, &defect{}, randomFaults)
		t.Logf("%s%s", o.commands(), o)
		if o.failed() {
			t.Fail()
		}
		return
	}
	began := time.Now()
	var lasted time.Duration
	var undecided int
	s := *first
	for ; more(s-*first, time.Since(began)); s++ {
		o := explore(t, s, &defect{}, randomFaults)
		lasted += o.lasted
		undecided += o.undecided
		if o.failed() {
			t.Errorf("%s\nto repeat it: go test ./test/simulation -run TestHistories -seed %d -v", o, s)
		}
	}
	t.Logf("seeds %d to %d: %s of fleet time, %.1f histories per second, %d processes undecided", *first, s-1,
		lasted.Round(time.Minute), float64(s-*first)/time.Since(began).Seconds(), undecided)
}

// leastHistories run however slow the machine is.
const leastHistories = 5

// more reports whether another history follows n, which took the time spent.
func more(n uint64, spent time.Duration) bool {
	if *seeds > 0 {
		return n < *seeds
	}
	return n < leastHistories || spent < *howLong
}
