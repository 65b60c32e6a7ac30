// Package datafile adds to os, for every system: locks between processes, durable
// directory entries, and files with secrets.
package datafile

import "errors"

// ErrHeld means that another process, or another open file of this process, has
// the lock.
var ErrHeld = errors.New("locked by another process")
