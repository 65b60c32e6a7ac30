package natsconn

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// FuzzCredentials reads arbitrary credentials files. The error of a rejected connection must say so, and
// must not contain the contents of the file.
func FuzzCredentials(f *testing.F) {
	const token = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJleHAiOjF9.c2lnbmF0dXJl"
	f.Add("-----BEGIN NATS USER JWT-----\n" + token + "\n------END NATS USER JWT------\n\n" +
		"-----BEGIN USER NKEY SEED-----\nSUADP\n------END USER NKEY SEED------\n")
	f.Add("-----BEGIN NATS USER JWT-----\n..\n------END NATS USER JWT------\n")
	f.Fuzz(func(t *testing.T, text string) {
		u := user{credentials: func() ([]byte, error) { return []byte(text), nil }}
		if _, err := u.sign([]byte("nonce")); err != nil && strings.Contains(err.Error(), "SUADP") {
			t.Errorf("the key is told: %v", err)
		}
		err := u.explain(nats.ErrAuthorization)
		if !errors.Is(err, nats.ErrAuthorization) || strings.Contains(err.Error(), token) {
			t.Errorf("the refusal became %v", err)
		}
	})
}
