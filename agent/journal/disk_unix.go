//go:build unix

package journal

import (
	"errors"
	"syscall"
)

// noSpace reports whether an error means that the disk or its quota is full.
func noSpace(err error) bool {
	return errors.Is(err, errNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
