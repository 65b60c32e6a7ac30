package journal

import (
	"errors"

	"golang.org/x/sys/windows"
)

// noSpace reports whether an error means that the disk or its quota is full.
func noSpace(err error) bool {
	return errors.Is(err, errNoSpace) || errors.Is(err, windows.ERROR_DISK_FULL) ||
		errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) || errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}
