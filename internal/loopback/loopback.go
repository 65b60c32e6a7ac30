// Package loopback keeps what listens on loopback from being reached by web
// pages through a browser on the same machine.
package loopback

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Host reports whether a host of an address, without its port, is this machine
// alone.
func Host(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// OnlyNames refuses requests that came here under a name which is not loopback's
// own: a page may let its name point to 127.0.0.1 and then pass for the same
// origin (DNS rebinding).
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
