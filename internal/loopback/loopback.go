// Package loopback protects loopback listeners from web pages that access them
// through a browser on the same machine.
package loopback

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Host reports whether a host without port, as in an address, is a loopback name or
// address.
func Host(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// OnlyNames rejects requests whose Host header is not a loopback name: a malicious
// page could resolve its own name to 127.0.0.1 to pass the browser's same-origin
// check (DNS rebinding).
func OnlyNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
		}
		if !Host(host) {
			http.Error(w, "a server on loopback is reached as 127.0.0.1 or localhost only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
