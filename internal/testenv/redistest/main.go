package redistest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and fails if goroutines remain. It ends the process.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks returns the goroutines that do not end. It has more patience than
// [goleak.VerifyTestMain], because a pool of go-redis that could not reach its
// server probes it every second, and only then notices that it was closed.
func leaks() error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := goleak.Find() // which waits a little itself
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
