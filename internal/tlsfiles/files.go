// Package tlsfiles creates TLS configurations from certificate and key files, and
// reloads changed files: to renew a certificate, replace its file. The minimum version
// is TLS 1.2.
package tlsfiles

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet/internal/datafile"
	"github.com/procfleet/procfleet/internal/invalid"
)

// maxFile is the maximum size of a file in bytes; system CA bundles are far smaller.
const maxFile = 16 << 20

// ErrNotInForce is wrapped by errors about certificates that are expired or not yet
// valid. The cause may also be a wrong clock of this machine.
var ErrNotInForce = errors.New("not in force")

// Files are the PEM files with the certificates of one side of a connection.
type Files struct {
	// CA contains the trusted certificate authorities. Without it, a client trusts
	// the system's authorities, and a server requests no client certificate.
	CA string
	// BesideSystem makes a client trust the system's authorities in addition to CA.
	BesideSystem bool
	// Cert contains the certificate of this side, followed by its chain to a trusted
	// authority; Key contains its private key. A server needs both, a client both
	// or neither.
	Cert, Key string
}

// use is the side of a connection: client or server.
type use struct {
	side  string
	usage x509.ExtKeyUsage
}

var (
	asClient = use{"clients", x509.ExtKeyUsageClientAuth}
	asServer = use{"servers", x509.ExtKeyUsageServerAuth}
)

// None reports whether no file is set.
func (f Files) None() bool { return f.CA == "" && f.Cert == "" && f.Key == "" }

// ValidateClient reads the files and returns all errors for a client, each with the
// name of its field.
func (f Files) ValidateClient() error { return f.validate(asClient) }

// ValidateServer is the same as ValidateClient for a server; nil without files.
func (f Files) ValidateServer() error {
	if f.Cert == "" && f.Key == "" && f.CA != "" {
		return invalid.Fieldf("CA", "of clients is of no use without a certificate of this server")
	}
	return f.validate(asServer)
}

func (f Files) validate(as use) error {
	read, err := f.read(as)
	if err != nil {
		return err
	}
	return read.inForce(f, time.Now())
}

// material is the parsed content of the files.
type material struct {
	roots  *x509.CertPool // nil without CA
	issuer []*x509.Certificate
	own    *tls.Certificate
	digest [sha256.Size]byte
}

func (f Files) read(as use) (*material, error) {
	var m material
	ca, errCA := f.readCA(&m)
	cert, key, errOwn := f.readOwn(&m, as)
	if err := errors.Join(errCA, errOwn); err != nil {
		return nil, err
	}
	m.digest = sha256.Sum256(bytes.Join([][]byte{ca, cert, key}, []byte{0}))
	return &m, nil
}

func (f Files) readCA(m *material) (text []byte, err error) {
	if f.CA == "" {
		return nil, nil
	}
	if text, err = datafile.Read(f.CA, maxFile); err != nil {
		return nil, invalid.Fieldf("CA", "%w", err)
	}
	if m.issuer, err = certificates(text); err != nil {
		return nil, invalid.Fieldf("CA", "%q %w", f.CA, err)
	}
	m.roots = x509.NewCertPool()
	if f.BesideSystem {
		if m.roots, err = x509.SystemCertPool(); err != nil {
			return nil, fmt.Errorf("certificates of the system: %w", err)
		}
	}
	for _, cert := range m.issuer {
		m.roots.AddCert(cert)
	}
	return text, nil
}

func (f Files) readOwn(m *material, as use) (cert, key []byte, err error) {
	switch {
	case f.Cert == "" && f.Key == "":
		return nil, nil, nil
	case f.Cert == "":
		return nil, nil, invalid.Fieldf("Cert", "is missing for the key %q", f.Key)
	case f.Key == "":
		return nil, nil, invalid.Fieldf("Key", "is missing for the certificate %q", f.Cert)
	}
	if cert, err = datafile.Read(f.Cert, maxFile); err != nil {
		return nil, nil, invalid.Fieldf("Cert", "%w", err)
	}
	if key, err = datafile.Read(f.Key, maxFile); err != nil {
		return nil, nil, invalid.Fieldf("Key", "%w", err)
	}
	chain, err := certificates(cert)
	if err != nil {
		return nil, nil, invalid.Fieldf("Cert", "%q %w", f.Cert, err)
	}
	if usages := chain[0].ExtKeyUsage; len(usages) > 0 && !slices.Contains(usages, as.usage) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
		return nil, nil, invalid.Fieldf("Cert", "%q (%s) is not for %s, by its extended key usage", f.Cert, chain[0].Subject, as.side)
	}
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, nil, invalid.Fieldf("Key", "%q %w", f.Key, wrongKey(key, f.Cert, err))
	}
	m.own = &own
	return cert, key, nil
}

// certificates parses the certificates in PEM text, which must contain at least one.
func certificates(text []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("has a certificate that cannot be read: %w", err)
		}
		found = append(found, cert)
	}
	if len(found) == 0 {
		return nil, errors.New("has no certificate in it; it begins with -----BEGIN CERTIFICATE-----")
	}
	return found, nil
}

// wrongKey returns an error that explains why a key does not fit a certificate. The
// error contains no part of the key.
func wrongKey(key []byte, cert string, err error) error {
	switch {
	case !bytes.Contains(key, []byte("PRIVATE KEY-----")):
		return errors.New("has no private key in it; it begins with -----BEGIN PRIVATE KEY-----")
	case bytes.Contains(key, []byte("ENCRYPTED")):
		return errors.New("is encrypted; procfleet cannot ask for its passphrase: store it without one")
	}
	return fmt.Errorf("is not the key of the certificate %q: %w", cert, err)
}

// inForce returns an error if a certificate is expired or not yet valid.
func (m *material) inForce(f Files, now time.Time) error {
	var errs []error
	if m.own != nil {
		if err := inForce(m.own.Leaf, now); err != nil {
			errs = append(errs, invalid.Fieldf("Cert", "%q (%s) %w", f.Cert, m.own.Leaf.Subject, err))
		}
	}
	if len(m.issuer) > 0 && !slices.ContainsFunc(m.issuer, func(c *x509.Certificate) bool { return inForce(c, now) == nil }) {
		errs = append(errs, invalid.Fieldf("CA", "%q (%s) %w", f.CA, m.issuer[0].Subject, inForce(m.issuer[0], now)))
	}
	return errors.Join(errs...)
}

func inForce(cert *x509.Certificate, now time.Time) error {
	switch {
	case now.After(cert.NotAfter):
		return fmt.Errorf("is %w any more: it expired at %s, and it is %s", ErrNotInForce, stamp(cert.NotAfter), stamp(now))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("is %w yet: it begins at %s, and it is %s", ErrNotInForce, stamp(cert.NotBefore), stamp(now))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
