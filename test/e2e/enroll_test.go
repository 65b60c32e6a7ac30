//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/testenv"
)

// TestAStolenIdentityActsOnlyAsItsHost enrolls two hosts,
// attacks the first with the identity of the second, revokes the second, and
// enrolls it again.
func TestAStolenIdentityActsOnlyAsItsHost(t *testing.T) {
	t.Parallel()
	auth, identities := tempFile(t, "nats-auth"), tempFile(t, "identities")
	listen := testenv.FreeAddress(t)
	u := newUp(t, "--agent=false", "--nats-listen", listen, "--nats-auth", auth)
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(u.program, args...).CombinedOutput(); err != nil {
			t.Fatalf("procfleet %v: %v\n%s", args, err, out)
		}
	}
	run("nats-auth", "init", "--nats-auth", auth)
	u.start()
	const host, thief = "3:10.0.0.1", "3:10.0.0.2"
	enroll := func() {
		run("enroll", "--host", host+","+thief, "--fleet-key", filepath.Join(u.data, "fleet.key"), "--nats-auth", auth, "--out", identities)
	}
	enroll()
	agent := testenv.StartChild(t, nil, testenv.BuildBinary(t, "./cmd/procfleet-agent"),
		"--nats", "nats://"+listen, "--identity", filepath.Join(identities, "3-10.0.0.1.yaml"), "--data", tempFile(t, "agent"))
	agent.WaitOutput(t, startTimeout, "accepting commands")

	stolen, err := fleetkey.ReadIdentity(filepath.Join(identities, "3-10.0.0.2.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 100)
	conn, err := nats.Connect("nats://"+listen, nats.UserCredentialBytes([]byte(stolen.NATS)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	heard := make(chan *nats.Msg, 1000)
	for _, subject := range []string{">", "procfleet.>", "procfleet.agent.3.10-0-0-1", "procfleet.answer.>", "_INBOX.>", "procfleet.result.*.3"} {
		if _, err := conn.ChanSubscribe(subject, heard); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
			t.Errorf("subscribing to %s: %v", subject, err)
		}
	}
	procs := newProcs(t)
	first := procs.grid([]string{host}, 1, "enrolled")
	u.succeeds(operation("start", first))
	if first[0].starts() != 1 {
		t.Errorf("%d starts", first[0].starts())
	}
	for _, subject := range []string{"procfleet.agent.3.10-0-0-1", "procfleet.answer.3.10-0-0-1.x.1", "$JS.API.STREAM.DELETE.PROCFLEET_OPS", "procfleet.hostevent.3", "procfleet.submit"} {
		if err := conn.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
			t.Errorf("publishing to %s: %v", subject, err)
		}
	}
	if len(heard) > 0 {
		t.Errorf("heard %v", <-heard)
	}

	run("revoke", "--host", host, "--fleet-key", filepath.Join(u.data, "fleet.key"), "--nats-auth", auth)
	agent.WaitOutput(t, startTimeout, "the credentials for NATS are revoked")
	enroll()
	agent.WaitOutput(t, startTimeout, "reconnected")
	u.succeeds(operation("start", procs.grid([]string{host}, 1, "again")))
}

// succeeds submits an operation of which every item must succeed.
func (u *up) succeeds(op map[string]any) {
	u.t.Helper()
	id := u.c.submit(op)
	if end := u.c.wait(id); end.Counts["succeeded"] != end.Items {
		u.t.Errorf("%v: %+v", end.Counts, u.c.results(id, end.Items))
	}
}
