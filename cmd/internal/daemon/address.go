package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// CheckAddress says what is wrong with an address to listen on.
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

// sameAddress reports whether two listeners of the form host:port would get in
// each other's way.
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

// OnLoopback reports whether only this machine can reach an address of the
// form host:port.
func OnLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && ip.Unmap().IsLoopback())
}

// RefuseExposed says why a listener on which callers can have commands run may
// not have this address.
func RefuseExposed(address string, allow bool) error {
	if err := CheckAddress(address); err != nil {
		return err
	}
	if allow || OnLoopback(address) {
		return nil
	}
	return fmt.Errorf("%s is not on loopback, and nobody is authenticated: whoever reaches it could run commands on every host. "+
		"Listen on 127.0.0.1, or give --allow-unauthenticated on a test network", address)
}

// Listen binds the address that a flag gives. At most so many connections are
// taken at a time; they speak TLS if files are not nil.
func Listen(ctx context.Context, flag, address string, files *tls.Config, most int) (*Listener, error) {
	listener, err := listenSoon(ctx, address)
	switch {
	case err == nil:
		return &Listener{listener.(*net.TCPListener), files, make(chan struct{}, most)}, nil // as net documents for "tcp"
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use: choose another address", flag, address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: %s needs rights that this user does not have: choose a port from 1024 on", flag, address)
	}
	return nil, fmt.Errorf("%s: %w", flag, err)
}

// listenSoon tries for a moment: a program that was killed may hold its address
// a little longer, in what it was about to start; see datafile.LockSoon.
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
