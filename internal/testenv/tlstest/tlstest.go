// Package tlstest creates certificates for tests. Only tests import it.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// day is the validity of certificates, which is longer than any test.
const day = 24 * time.Hour

// CA is a certificate authority of a test.
type CA struct {
	// File is the path of the CA's certificate.
	File string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair holds the paths of a certificate and its key.
type Pair struct{ Cert, Key string }

// NewCA creates a CA with its files in a temporary folder of the test.
func NewCA(tb testing.TB, name string) *CA {
	tb.Helper()
	ca := &CA{dir: tb.TempDir(), key: newKey(tb)}
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(day), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		tb.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	ca.File = filepath.Join(ca.dir, "ca.pem")
	write(tb, ca.File, "CERTIFICATE", der)
	return ca
}

// Option changes a certificate before it is signed.
type Option func(*x509.Certificate)

// Expired is an [Option] for a certificate that expired a minute ago.
func Expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// At returns an [Option] for a certificate that is also valid for the given addresses.
func At(addresses ...string) Option {
	return func(c *x509.Certificate) {
		for _, a := range addresses {
			c.IPAddresses = append(c.IPAddresses, net.ParseIP(a))
		}
	}
}

// ForServers is an [Option] for a certificate that clients cannot present.
func ForServers(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

// Issue creates a server and client certificate for localhost, 127.0.0.1 and ::1 in files
// with the given name. Issuing the same name again replaces the files, like a renewal.
func (ca *CA) Issue(tb testing.TB, name string, options ...Option) Pair {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(day), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, option := range options {
		option(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		tb.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	pair := Pair{Cert: filepath.Join(ca.dir, name+".pem"), Key: filepath.Join(ca.dir, name+".key")}
	write(tb, pair.Cert, "CERTIFICATE", der)
	write(tb, pair.Key, "PRIVATE KEY", secret)
	return pair
}

// Pool returns a certificate pool with only this CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// write replaces a file atomically, so that no process reads partial content.
func write(tb testing.TB, name, kind string, der []byte) {
	tb.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		tb.Fatal(err)
	}
}

// Replace atomically replaces the content of one file with the content of another, like a
// correct renewal of a certificate.
func Replace(tb testing.TB, name, by string) {
	tb.Helper()
	text, err := os.ReadFile(by)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		tb.Fatal(err)
	}
}
