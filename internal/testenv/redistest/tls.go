package redistest

import (
	"strconv"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

const tlsPort = "--tls-port"

// TLS holds the PEM files of a server with TLS.
type TLS struct{ CA, Cert, Key string }

// Args returns the arguments with which one server accepts TLS clients with a certificate on
// an additional port, and uses TLS as a replica, cluster node or Sentinel. The port without
// TLS remains open for the functions of this package.
func (t TLS) Args(tb testing.TB) []string {
	tb.Helper()
	return []string{
		tlsPort, strconv.Itoa(testenv.FreePort(tb)), "--tls-ca-cert-file", t.CA, "--tls-cert-file", t.Cert, "--tls-key-file", t.Key,
		"--tls-auth-clients", "yes", "--tls-replication", "yes", "--tls-cluster", "yes",
	}
}
