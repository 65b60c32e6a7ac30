package local

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// socketName is the socket's file in a data folder.
const socketName = "agent.sock"

// longestPath is how many bytes of a path every system takes as a socket's.
const longestPath = 100

// socket is one that is listened on.
type socket struct {
	net.Listener
	path string
	file os.FileInfo // as it was made
}

// listen makes the socket of a data folder, in the place of one that an
// earlier agent left. The caller has the folder to itself.
func listen(ctx context.Context, dir string) (*socket, error) {
	path := filepath.Join(dir, socketName)
	fresh := path + ".new" // until nobody else may use it
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := onPath(fresh, func(path string) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "unix", path)
	})
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s := &socket{Listener: l, path: path}
	if err := errors.Join(makePrivate(fresh), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(fresh))
	}
	if s.file, err = os.Lstat(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// there reports whether the file is still this socket: the folder may have
// been removed or made anew.
func (s *socket) there() bool {
	now, err := os.Lstat(s.path)
	return err == nil && os.SameFile(s.file, now)
}

// Close ends the socket and removes its file.
func (s *socket) Close() error {
	if !s.there() {
		return s.Listener.Close()
	}
	return errors.Join(s.Listener.Close(), os.Remove(s.path))
}
