package local

import (
	"errors"
	"syscall"
)

// makePrivate leaves the socket to the rights of its folder.
func makePrivate(string) error { return nil }

// wsaConnRefused is WSAECONNREFUSED.
const wsaConnRefused = syscall.Errno(10061)

// refused reports whether nobody listens on a socket whose file is there.
func refused(err error) bool { return errors.Is(err, wsaConnRefused) }
