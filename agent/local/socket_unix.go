//go:build unix

package local

import (
	"errors"
	"os"
	"syscall"
)

func makePrivate(path string) error { return os.Chmod(path, 0o600) }

// refused reports whether nobody listens on a socket whose file is there.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
