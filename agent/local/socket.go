package local

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// socketName is the file name of the socket in a data folder.
const socketName = "agent.sock"

// longestPath is the maximum length of a socket's path that every system accepts, in bytes.
const longestPath = 100

// socket is a listening socket.
type socket struct {
	net.Listener
	path string
	file os.FileInfo // file at the creation of the socket
}

// listen creates the socket in the data folder dir and replaces the socket of an earlier
// agent. The caller has locked the folder.
func listen(ctx context.Context, dir string) (*socket, error) {
	path := filepath.Join(dir, socketName)
	fresh := path + ".new" // renamed once its permissions are set
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

// exists reports whether the path still is the file of this socket: the folder may have been
// removed or recreated.
func (s *socket) exists() bool {
	now, err := os.Lstat(s.path)
	return err == nil && os.SameFile(s.file, now)
}

// Close closes the socket and removes its file.
func (s *socket) Close() error {
	if !s.exists() {
		return s.Listener.Close()
	}
	return errors.Join(s.Listener.Close(), os.Remove(s.path))
}
