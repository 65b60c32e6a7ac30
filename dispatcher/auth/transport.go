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

// localCaller is the account of the process that opened a connection.
type localCaller struct {
	uid uint32
	err error // the kernel did not report the account
}

type localCallerKey struct{}

// Identify adds the account that opened a connection to ctx. Call it before reading
// from conn: the kernel reports the account only while the caller has the socket open.
func Identify(ctx context.Context, conn net.Conn) context.Context {
	uid, err := peercred.UID(conn)
	return context.WithValue(ctx, localCallerKey{}, &localCaller{uid, err})
}

// RefuseOtherAccounts returns an error unless root or the server's own account opened
// the connection. Without [Identify] it returns nil.
func RefuseOtherAccounts(ctx context.Context) error {
	from, asked := ctx.Value(localCallerKey{}).(*localCaller)
	own := os.Geteuid()
	switch {
	case !asked, from.err == nil && (from.uid == 0 || int(from.uid) == own):
		return nil
	case from.err != nil:
		return &dialect.Error{Kind: dialect.Forbidden, Problem: fmt.Sprintf("%s; %s", from.err, permitOthers)}
	}
	return &dialect.Error{Kind: dialect.Forbidden, Problem: fmt.Sprintf(
		"only root and the account that runs this server (uid %d) may call, and this connection is from uid %d; %s", own, from.uid, permitOthers)}
}

// permitOthers is the remedy in refusals: how an operator permits other accounts to call.
const permitOthers = "to permit other callers, add an application with `procfleet app add CODE --apps FILE` and start the server with --apps FILE, " +
	"or permit every account of this machine with --allow-local-users"

// A dispatcher on loopback trusts every local caller and accepts bodies of any
// Content-Type. A browser on the same machine would send it requests on behalf of any
// web page, so requests from pages of other origins are rejected.

// RefuseForeignPages rejects requests that browsers send for pages of another origin.
func RefuseForeignPages(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("requests from web pages of another origin are rejected\n")) // fails if the caller has disconnected
	}))
	return protection.Handler(next)
}

// RequestIDHeader is the header with a request's id.
const RequestIDHeader = "X-Bkapi-Request-Id"

// onlyOnce are headers that carry credentials or change how a request is decoded. A
// duplicate is rejected, because a proxy in front may have checked the other value.
var onlyOnce = []string{
	"Authorization", "X-Bkapi-Authorization", "Bk-App-Code", "Bk-Username",
	"Bk_user", "Bk-User", "Http_blueking_supplier_id", "Http-Blueking-Supplier-Id", "Content-Type", RequestIDHeader,
}

// RefuseHeader returns an error for duplicate headers in onlyOnce, and for compressed
// bodies, because a short body may expand to any size.
func RefuseHeader(h http.Header) error {
	for _, name := range onlyOnce {
		if len(h[name]) > 1 {
			return &dialect.Error{Kind: dialect.Malformed, Field: "header " + name, Problem: "occurs more than once"}
		}
	}
	for _, encoding := range h["Content-Encoding"] {
		if encoding != "" && encoding != "identity" {
			return &dialect.Error{Kind: dialect.Malformed, Field: "header Content-Encoding", Problem: "compressed bodies are not accepted; send the body uncompressed"}
		}
	}
	return nil
}
