//go:build unix

package local

import (
	"errors"
	"os"
	"syscall"
)

func makePrivate(path string) error { return os.Chmod(path, 0o600) }

// refused reports whether no process listens on an existing socket.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
