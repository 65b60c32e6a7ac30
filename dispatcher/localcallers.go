package dispatcher

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/loopback"
	"github.com/procfleet/procfleet/internal/peercred"
)

// unixSocket is the prefix of [Config].Listen that names a Unix socket.
const unixSocket = "unix:"

// onlyThisMachine reports whether no other machine can reach what Listen names.
func (c *Config) onlyThisMachine() bool {
	host, _, _ := net.SplitHostPort(c.Listen)
	return strings.HasPrefix(c.Listen, unixSocket) || loopback.Host(host)
}

// onlyOwnAccount reports whether of all accounts of this machine only the
// dispatcher's own and root may call.
func (c *Config) onlyOwnAccount() bool {
	return c.onlyThisMachine() && c.AppsFile == "" && !c.AllowLocalUsers && !c.AllowUnauthenticated
}

// localCaller is the account at the other end of a connection.
type localCaller struct {
	uid uint32
	err error // the kernel did not say
}

type localCallerKey struct{}

// identify asks the kernel for the account that opened a connection. It is
// called once for each, before anything is read: what asked later could be
// about a socket that is closed.
func identify(ctx context.Context, conn net.Conn) context.Context {
	uid, err := peercred.UID(conn)
	return context.WithValue(ctx, localCallerKey{}, &localCaller{uid, err})
}

// refuseOtherAccounts refuses a request on a connection that another account
// opened. Where accounts are not told apart it refuses none.
func refuseOtherAccounts(ctx context.Context) error {
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

// letIn says how an operator lets other accounts call.
const letIn = "to let others call, add an application with `procfleet app add CODE --apps FILE` and start the server with --apps FILE; " +
	"or let every account of this machine call with --allow-local-users"
