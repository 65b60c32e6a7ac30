// Package tlstest makes certificates for tests. Only tests import it.
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

// day is how long certificates are good: longer than any test.
const day = 24 * time.Hour

// CA signs certificates.
type CA struct {
	// File has its certificate.
	File string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair are the files of a certificate and its key.
type Pair struct{ Cert, Key string }

// NewCA makes a CA with its files in a folder of the test's.
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

// Expired ended a minute ago.
func Expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// At is good for these addresses too.
func At(addresses ...string) Option {
	return func(c *x509.Certificate) {
		for _, a := range addresses {
			c.IPAddresses = append(c.IPAddresses, net.ParseIP(a))
		}
	}
}

// ForServers is of no use to a client.
func ForServers(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

// Issue makes a certificate for localhost, 127.0.0.1 and ::1, good for servers
// and clients, in files that are named after it. With the name of an earlier one
// it takes its place, as a renewal does.
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

// Pool believes this CA alone.
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

// write replaces a file at once: nobody reads half of it.
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

// Replace puts the content of one file in the place of another at once, as who
// renews a certificate should.
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
