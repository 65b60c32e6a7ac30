package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// listen binds the address that a flag gives.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use: choose another address", flag, address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s: %s needs rights that this user does not have: choose a port from 1024 on", flag, address)
	}
	return nil, fmt.Errorf("%s: %w", flag, err)
}

// refuseExposed refuses addresses that others than this machine can reach.
func refuseExposed(flag, address string, allow bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return usageError("%s: %q is not of the form host:port, for example 127.0.0.1:8080", flag, address)
	}
	ip, err := netip.ParseAddr(host)
	if allow || host == "localhost" || (err == nil && ip.Unmap().IsLoopback()) {
		return nil
	}
	return usageError("%s %s is not on loopback, and nobody is authenticated: whoever reaches it could run commands on every host. "+
		"Listen on 127.0.0.1, or give --allow-unauthenticated on a test network", flag, address)
}
