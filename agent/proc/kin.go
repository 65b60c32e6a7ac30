package proc

import (
	"context"
	"errors"
	"strings"
	"time"
)

// maxGenerations bounds the way from a process to its ancestors.
const maxGenerations = 64

// Kin reports whether the younger process descends from the older one, or has
// the same parent and session. False as well if either is gone.
func Kin(older, younger Identity) bool {
	elder, err := statOf(older)
	if err != nil {
		return false
	}
	st, err := statOf(younger)
	if err != nil {
		return false
	}
	if st.PPID == elder.PPID && st.Session == elder.Session {
		return true
	}
	for range maxGenerations {
		switch {
		case st.PPID == elder.PID:
			return true
		case st.PPID <= 1:
			return false
		}
		if st, err = readStat(st.PPID); err != nil {
			return false
		}
	}
	return false
}

// Stands reports whether the process runs (see [Alive]), and whether it was
// stopped by a signal or a debugger.
func Stands(id Identity) (alive, suspended bool) {
	st, err := statOf(id)
	return !errors.Is(err, ErrGone), st.State == 'T' || st.State == 't'
}

// FilesWritten is when each file was written last; the zero time for a file of
// which it cannot be told. It fails after about 2 s on a file system that hangs.
// Unlike PidFileWritten it follows every symbolic link: what it returns says
// whether to look at a pid file again, and nothing else may depend on it.
func (f *Finder) FilesWritten(ctx context.Context, paths []string) ([]time.Time, error) {
	return guard(ctx, f.watchdog, strings.Join(paths, "\x00"), func() []time.Time {
		written := make([]time.Time, len(paths))
		for i, path := range paths {
			written[i] = fileWritten(path)
		}
		return written
	})
}

// PidFileWritten is when a pid file was written last; the zero time if there is
// none or it cannot be told. It returns within about 2 s on a file system that
// hangs.
func (f *Finder) PidFileWritten(ctx context.Context, path string) time.Time {
	written, err := guard(ctx, f.watchdog, path, func() time.Time { return pidFileWritten(path) })
	if err != nil {
		return time.Time{}
	}
	return written
}
