package dispatcher

import (
	"net"
	"net/http"
)

// A dispatcher on loopback trusts whoever can reach it, and it takes bodies of
// any Content-Type. A browser on the same machine reaches it too, on behalf of
// whatever page it shows, so requests that come from foreign pages are refused.

// refuseForeignPages refuses browsers' requests from pages of another origin.
func refuseForeignPages(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		forbid(w, "requests from web pages of another origin are refused")
	}))
	return protection.Handler(next)
}

// onlyLoopbackNames refuses requests that came here under a name which is not
// this machine's own: a page may let its name point to 127.0.0.1 and then pass
// for the same origin.
func onlyLoopbackNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !loopback(trimBrackets(host)) {
			forbid(w, "a dispatcher on loopback is reached as 127.0.0.1 or localhost only")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func trimBrackets(host string) string {
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		return host[1 : len(host)-1]
	}
	return host
}

// forbid answers before any dialect is known.
func forbid(w http.ResponseWriter, problem string) { plain(w, http.StatusForbidden, problem) }
