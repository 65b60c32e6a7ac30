package main

import (
	"path/filepath"
	"testing"

	"github.com/nats-io/jwt/v2"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// TestAHostThatIsEnrolledAfterItsRevocationHasANATSUserThatIsNotRevoked, and
// without a revocation the same one as before.
func TestAHostThatIsEnrolledAfterItsRevocationHasANATSUserThatIsNotRevoked(t *testing.T) {
	t.Parallel()
	data, identity := filepath.Join(t.TempDir(), "fleet"), filepath.Join(t.TempDir(), "identity.yaml")
	enroll := func() (user string) {
		t.Helper()
		if code, _, note := call(t, "enroll", "--create", "--data", data, "--host", "3:10.0.0.1", "--out", identity); code != 0 {
			t.Fatalf("enroll: exit %d, %s", code, note)
		}
		i, err := fleetkey.ReadIdentity(identity)
		if err != nil {
			t.Fatal(err)
		}
		user, _, err = natsauth.ParseCredentials([]byte(i.NATS))
		if err != nil {
			t.Fatal(err)
		}
		return user
	}
	revoked := func(user string) bool {
		t.Helper()
		authority, err := natsauth.Open(filepath.Join(data, natsAuthName))
		if err != nil {
			t.Fatal(err)
		}
		token, err := authority.Account()
		if err != nil {
			t.Fatal(err)
		}
		account, err := jwt.DecodeAccountClaims(token)
		if err != nil {
			t.Fatal(err)
		}
		_, is := account.Revocations[user]
		return is
	}
	user := enroll()
	for n := range 3 {
		if again := enroll(); again != user || revoked(user) {
			t.Errorf("after %d revocations: user %s and then %s, revoked: %v", n, user, again, revoked(user))
		}
		if code, _, note := call(t, "revoke", "--data", data, "--host", "3:10.0.0.1"); code != 0 {
			t.Fatalf("revoke: exit %d, %s", code, note)
		}
		if !revoked(user) {
			t.Errorf("after %d revocations: %s is not revoked", n+1, user)
		}
		before := user
		if user = enroll(); user == before {
			t.Errorf("after %d revocations: enrolled as the revoked user %s", n+1, user)
		}
	}
}
