package datafile

import (
	"errors"
	"os"
	"time"
)

// LockSoon is [Lock] that gives up with ErrHeld after two seconds. A program
// that was killed may hold its locks for a moment longer: what it was about to
// start has its open files until it has become another program.
func LockSoon(f *os.File) error {
	const moment, pause = 2 * time.Second, 20 * time.Millisecond
	for end := time.Now().Add(moment); ; <-time.After(pause) {
		err := TryLock(f)
		if !errors.Is(err, ErrHeld) || time.Now().After(end) {
			return err
		}
	}
}
