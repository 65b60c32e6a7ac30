package natsauth

import (
	"path/filepath"
	"testing"
)

// FuzzParseCredentials reads the file of a NATS user. What is read names one.
func FuzzParseCredentials(f *testing.F) {
	authority, err := Create(filepath.Join(f.TempDir(), "nats-auth"))
	if err != nil {
		f.Fatal(err)
	}
	credentials, err := authority.NewUser(Server, "server", 0, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(credentials))
	f.Add([]byte("-----BEGIN NATS USER JWT-----\nx.y.z\n------END NATS USER JWT------\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if user, _, err := ParseCredentials(text); (err == nil) == (user == "") {
			t.Errorf("user %q and %v", user, err)
		} else if of, ofErr := authority.UserOf(text); ofErr == nil && (err != nil || of != user) {
			t.Errorf("user %q of the authority, who is %q, %v", of, user, err)
		}
	})
}
