package natsauth

import (
	"bytes"
	"testing"

	"github.com/nats-io/nkeys"
)

// FuzzParseCredentials parses arbitrary credentials files. Parsed credentials must contain a user.
func FuzzParseCredentials(f *testing.F) {
	account := func(n byte) nkeys.KeyPair { // the same in each of the processes that fuzz
		pair, err := nkeys.FromRawSeed(nkeys.PrefixByteAccount, bytes.Repeat([]byte{n}, secretSize))
		if err != nil {
			f.Fatal(err)
		}
		return pair
	}
	authority := &Authority{account: account(1), system: account(2), signing: map[Role]nkeys.KeyPair{Server: account(3)}}
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
