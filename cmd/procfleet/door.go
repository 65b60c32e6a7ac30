package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"

	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/internal/peercred"
)

// open binds the address of a dispatcher's HTTP listener, before anything else
// is touched.
func (f *doorFlags) open(ctx context.Context, p *daemon.Process) (*daemon.Listener, error) {
	files, err := f.listenTLS.Open(p.Log)
	if err != nil {
		return nil, err
	}
	return daemon.Listen(ctx, "--http", f.listen, files, f.connections)
}

// socketName is the Unix socket that `up` serves in its data folder.
const socketName = "http.sock"

// openBeside binds the Unix socket in the data folder, which this process has
// to itself; nil where there can be none. Only where the kernel says who calls
// is it worth more than the address.
func (f *doorFlags) openBeside(ctx context.Context, folder string, p *daemon.Process) net.Listener {
	if !peercred.Supported {
		return nil
	}
	path := filepath.Join(folder, socketName)
	err := daemon.CheckSocket(path)
	if err == nil {
		var socket *daemon.Listener
		if socket, err = daemon.Listen(ctx, "--data", daemon.UnixSocket+path, nil, f.connections); err == nil {
			return socket
		}
	}
	p.Log.WithError(err).Info("Unix socket unavailable, serving --http only")
	return nil
}

// socketPath is the path of --http if that is a Unix socket.
func (f *doorFlags) socketPath() (path string, is bool) {
	return strings.CutPrefix(f.listen, daemon.UnixSocket)
}

// url is where the listener can be reached from this machine, as --server
// takes it.
func (f *doorFlags) url(l *daemon.Listener) string {
	if _, is := f.socketPath(); is {
		return f.listen
	}
	if f.listenTLS.None() {
		return "http://" + l.Addr().String()
	}
	return "https://" + l.Addr().String()
}
