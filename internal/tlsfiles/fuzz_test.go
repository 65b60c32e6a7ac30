package tlsfiles

import (
	"os"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv/tlstest"
)

// FuzzCertificates reads PEM. It ends in certificates or in an error.
func FuzzCertificates(f *testing.F) {
	pair := tlstest.NewCA(f, "tests").Issue(f, "one")
	text, err := os.ReadFile(pair.Cert)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("nothing\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if found, err := certificates(text); (err == nil) == (len(found) == 0) {
			t.Errorf("%d certificates and %v", len(found), err)
		}
	})
}
