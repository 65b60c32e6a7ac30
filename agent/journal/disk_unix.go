//go:build unix

package journal

import (
	"errors"
	"syscall"
)

// noSpace reports whether an error says that the disk, or what of it may be
// used, is full.
func noSpace(err error) bool {
	return errors.Is(err, errNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
