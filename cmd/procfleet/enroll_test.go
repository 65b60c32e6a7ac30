package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// A host that is enrolled after its revocation receives a new NATS user, which is not revoked. Without a
// revocation it receives the same user again.
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
		broker, err := authority.Broker()
		if err != nil {
			t.Fatal(err)
		}
		account, err := jwt.DecodeAccountClaims(broker.Accounts[broker.Account])
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

// An identity contains the agent id of its enrollment. An agent id belongs to one host.
func TestAnIdentityHoldsTheAgentIDOfItsEnrollment(t *testing.T) {
	t.Parallel()
	data, file := filepath.Join(t.TempDir(), "fleet"), filepath.Join(t.TempDir(), "identity.yaml")
	enroll := func(args ...string) (code int, note string) {
		t.Helper()
		code, _, note = call(t, append([]string{"enroll", "--create", "--data", data, "--out", file}, args...)...)
		return code, note
	}
	if code, note := enroll("--host", "3:10.0.0.1", "--agent-id", "a-1"); code != 0 {
		t.Fatalf("enroll: exit %d, %s", code, note)
	}
	identity, err := fleetkey.ReadIdentity(file)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := fleetkey.ReadRing(filepath.Join(data, fleetKeyName))
	if err != nil {
		t.Fatal(err)
	}
	header := map[string][]string{}
	identity.Host.Sign(header, &fleetkey.Message{})
	if err := ring.VerifyAgentID(header, "3:10.0.0.1", "a-1"); err != nil || identity.Host.AgentID() != "a-1" {
		t.Errorf("the identity holds %q: %v", identity.Host.AgentID(), err)
	}
	for _, args := range [][]string{
		{"--host", "3:10.0.0.1,3:10.0.0.2", "--agent-id", "a-1"},
		{"--host", "3:10.0.0.1", "--agent-id", "3:10.0.0.2"},
	} {
		if code, note := enroll(args...); code != 2 || !strings.Contains(note, "--agent-id") {
			t.Errorf("%v: exit %d, %s", args, code, note)
		}
	}
}

// The id of a key is the second of its creation. A second key can still be added within the same second.
func TestAKeyIsAddedInTheSecondOfAnother(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "fleet.key")
	for _, command := range []string{"create", "add", "add"} {
		if code, _, note := call(t, "fleet-key", command, "--fleet-key", file); code != 0 {
			t.Fatalf("%s: exit %d, %s", command, code, note)
		}
	}
	code, list, note := call(t, "fleet-key", "list", "--fleet-key", file)
	if n := strings.Count(list, "\n"); code != 0 || n != 3 {
		t.Errorf("%d keys, exit %d, %s:\n%s", n, code, note, list)
	}
}
