package local

import (
	"errors"
	"syscall"
)

// makePrivate does nothing: the permissions of the folder protect the socket.
func makePrivate(string) error { return nil }

// wsaConnRefused is WSAECONNREFUSED.
const wsaConnRefused = syscall.Errno(10061)

// refused reports whether no process listens on an existing socket.
func refused(err error) bool { return errors.Is(err, wsaConnRefused) }
