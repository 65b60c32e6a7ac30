// Package datafile is what files of data need of a file system beyond what os
// offers on every system: locks between processes, and names that last.
package datafile

import "errors"

// ErrHeld says that another process, or another opening of the file in this
// one, holds the lock.
var ErrHeld = errors.New("locked by another process")
