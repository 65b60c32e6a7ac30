package proc

import (
	"errors"
	"slices"
	"syscall"
)

var (
	// ErrSetup marks errors of a start that say that this host is not set up for
	// the command, which trying again does not change: its account, its
	// directory, its right to run as the account.
	ErrSetup = errors.New("host is not set up for the command")

	// ErrNoRoom marks errors of a start that say that the host has no room for
	// another process just now: processes, memory, file descriptors, disk.
	ErrNoRoom = errors.New("host has no room for another process")
)

// noRoom are the system's errors that become [ErrNoRoom].
var noRoom = []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC}

// marked is an error that is also another one, without saying so.
type marked struct{ err, mark error }

func (m marked) Error() string   { return m.err.Error() }
func (m marked) Unwrap() []error { return []error{m.err, m.mark} }

// markSetup marks an error of the preparation of a command. Where the host has
// no room even for looking, that is what is wrong.
func markSetup(err error) error {
	if err == nil || isNoRoom(err) {
		return err
	}
	return marked{err: err, mark: ErrSetup}
}

// markRoom marks an error if the host has no room.
func markRoom(err error) error {
	if isNoRoom(err) {
		return marked{err: err, mark: ErrNoRoom}
	}
	return err
}

func isNoRoom(err error) bool {
	return slices.ContainsFunc(noRoom, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// Exit codes by which a shell says that it could not run a program.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Unstartable reports whether the command did not run since its program is not
// executable, which trying again does not change.
func (r Result) Unstartable() bool { return r.ExitCode == exitNotExecutable }
