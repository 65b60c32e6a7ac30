package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/procfleet/procfleet/internal/loopback"
)

// CheckAddress returns an error unless address is of the form host:port.
func CheckAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not of the form host:port, for example 127.0.0.1:8080", address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port from 0 to 65535, for example 127.0.0.1:8080", address)
	}
	return nil
}

// sameAddress reports whether listeners on the addresses a and b, of the form
// host:port, would conflict.
func sameAddress(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || everyHost(hostA) || everyHost(hostB) || OnLoopback(a) && OnLoopback(b) && (hostA == "localhost" || hostB == "localhost")
}

func everyHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// OnLoopback reports whether an address of the form host:port is reachable from this
// machine only.
func OnLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return loopback.Host(host)
}

// UnixSocket is the prefix of addresses that are paths of Unix sockets.
const UnixSocket = "unix:"

// maxSocketPath is the maximum length of a socket path on all systems, in bytes.
const maxSocketPath = 103

// CheckSocket returns an error for an invalid path of a Unix socket.
func CheckSocket(path string) error {
	switch {
	case path == "":
		return errors.New("unix: requires a path, for example unix:/run/procfleet/http.sock")
	case len(path) > maxSocketPath:
		return fmt.Errorf("the path %s has %d bytes, more than the %d of a Unix socket: choose a shorter one", path, len(path), maxSocketPath)
	}
	return nil
}

// Listen binds the address of a flag: host:port, or unix:PATH for a socket that only
// this account and root can open. It accepts up to most concurrent connections, with
// TLS if files is not nil.
func Listen(ctx context.Context, flag, address string, files *tls.Config, most int) (*Listener, error) {
	var listener net.Listener
	var err error
	if path, is := strings.CutPrefix(address, UnixSocket); is {
		listener, err = listenUnix(ctx, path)
	} else {
		listener, err = listenSoon(ctx, address)
	}
	switch {
	case err == nil:
		return &Listener{listener.(bound), files, make(chan struct{}, most)}, nil // the type that package net documents for "tcp" and "unix"
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use: choose another address", flag, address)
	case errors.Is(err, syscall.EACCES) && !strings.HasPrefix(address, UnixSocket):
		return nil, fmt.Errorf("%s: %s requires rights that this user lacks: choose a port from 1024 on", flag, address)
	}
	return nil, fmt.Errorf("%s: %w", flag, err)
}

// listenSoon retries for a moment: child processes of a killed program may hold its
// address a little longer; see datafile.LockSoon.
func listenSoon(ctx context.Context, address string) (net.Listener, error) {
	const moment, pause = 2 * time.Second, 20 * time.Millisecond
	for end := time.Now().Add(moment); ; {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return listener, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// listenUnix binds the path of a socket. It replaces the socket of a killed program.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(ctx, path) {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		listener, err = new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// abandoned reports whether path is a socket without a listening program.
func abandoned(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // no data was sent
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
