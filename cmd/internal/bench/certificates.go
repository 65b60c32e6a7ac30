package bench

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
	"time"

	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// makeCertificates creates in dir a certificate authority and one certificate, which all
// servers on loopback and all clients use.
func makeCertificates(dir string) (tlsfiles.Files, error) {
	files := tlsfiles.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "procfleet bench CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := certify(ca, ca, nil, files.CA)
	if err != nil {
		return files, err
	}
	own := &x509.Certificate{
		Subject: pkix.Name{CommonName: "procfleet bench"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	key, err := certify(own, ca, caKey, files.Cert)
	if err != nil {
		return files, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return files, err
	}
	return files, writePEM(files.Key, "PRIVATE KEY", der)
}

// certify creates a key, writes its certificate to file and returns the key. If issuer is
// nil, the certificate is self-signed.
func certify(cert, issuer *x509.Certificate, issuerKey *ecdsa.PrivateKey, file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if issuerKey == nil {
		issuerKey = key
	}
	const day, serialBits = 24 * time.Hour, 100
	if cert.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)); err != nil {
		return nil, err
	}
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(day)
	der, err := x509.CreateCertificate(rand.Reader, cert, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		return nil, err
	}
	return key, writePEM(file, "CERTIFICATE", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
