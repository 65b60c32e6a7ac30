package auth

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/peercred"
)

// localCaller is the account at the other end of a connection.
type localCaller struct {
	uid uint32
	err error // the kernel did not say
}

type localCallerKey struct{}

// Identify adds the account that opened a connection to its context. It queries
// the kernel before anything is read, because the caller may close the socket later.
func Identify(ctx context.Context, conn net.Conn) context.Context {
	uid, err := peercred.UID(conn)
	return context.WithValue(ctx, localCallerKey{}, &localCaller{uid, err})
}

// RefuseOtherAccounts refuses a request on a connection that another account
// opened. Without [Identify] it refuses none.
func RefuseOtherAccounts(ctx context.Context) error {
	from, asked := ctx.Value(localCallerKey{}).(*localCaller)
	own := os.Geteuid()
	switch {
	case !asked, from.err == nil && (from.uid == 0 || int(from.uid) == own):
		return nil
	case from.err != nil:
		return &dialect.Error{Kind: dialect.Forbidden, Problem: fmt.Sprintf("%s; %s", from.err, letIn)}
	}
	return &dialect.Error{Kind: dialect.Forbidden, Problem: fmt.Sprintf(
		"only root and the account that runs this server (uid %d) may call, and this connection is from uid %d; %s", own, from.uid, letIn)}
}

// letIn says how an operator permits other accounts to call.
const letIn = "to let others call, add an application with `procfleet app add CODE --apps FILE` and start the server with --apps FILE; " +
	"or let every account of this machine call with --allow-local-users"

// A dispatcher on loopback trusts every local caller, and accepts bodies of any
// Content-Type. A browser on the same machine sends it requests for any web page
// that it shows, so requests from pages of other origins are refused.

// RefuseForeignPages refuses browsers' requests from pages of another origin.
func RefuseForeignPages(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("requests from web pages of another origin are refused\n")) // the caller may be gone
	}))
	return protection.Handler(next)
}

// RequestIDHeader names a request.
const RequestIDHeader = "X-Bkapi-Request-Id"

// onlyOnce are headers that carry credentials or change how a request is read.
// If one occurs twice, a proxy in front may have checked the other one.
var onlyOnce = []string{
	"Authorization", "X-Bkapi-Authorization", "Bk-App-Code", "Bk-Username",
	"Bk_user", "Bk-User", "Http_blueking_supplier_id", "Http-Blueking-Supplier-Id", "Content-Type", RequestIDHeader,
}

// RefuseHeader refuses ambiguous headers, and compressed bodies: a short one may
// expand to any length.
func RefuseHeader(h http.Header) error {
	for _, name := range onlyOnce {
		if len(h[name]) > 1 {
			return &dialect.Error{Kind: dialect.Malformed, Field: "header " + name, Problem: "is there more than once"}
		}
	}
	for _, encoding := range h["Content-Encoding"] {
		if encoding != "" && encoding != "identity" {
			return &dialect.Error{Kind: dialect.Malformed, Field: "header Content-Encoding", Problem: "packed bodies are not taken; send it as it is"}
		}
	}
	return nil
}
