package dispatcher

import (
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

// forbid answers before any dialect is known.
func forbid(w http.ResponseWriter, problem string) { plain(w, http.StatusForbidden, problem) }
