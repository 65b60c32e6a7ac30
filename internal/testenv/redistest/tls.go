package redistest

import (
	"strconv"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

const tlsPort = "--tls-port"

// TLS are the files of a server that speaks TLS, in PEM.
type TLS struct{ CA, Cert, Key string }

// Args let one server speak TLS on a port of its own with clients that have a
// certificate, and use it as replica, node of a cluster or Sentinel. The port
// without TLS stays open for the functions of this package.
func (t TLS) Args(tb testing.TB) []string {
	tb.Helper()
	return []string{
		tlsPort, strconv.Itoa(testenv.FreePort(tb)), "--tls-ca-cert-file", t.CA, "--tls-cert-file", t.Cert, "--tls-key-file", t.Key,
		"--tls-auth-clients", "yes", "--tls-replication", "yes", "--tls-cluster", "yes",
	}
}
