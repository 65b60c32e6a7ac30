package agentproto

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSubjects(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		HostToken(netip.MustParseAddr("10.0.0.1")):           "10-0-0-1",
		HostToken(netip.MustParseAddr("fd00::1")):            "fd00--1",
		HostToken(netip.MustParseAddr("FD00:0:0:0:0:0:0:1")): "fd00--1",
		AgentSubject(0, netip.MustParseAddr("10.0.0.1")):     "procfleet.agent.0.10-0-0-1",
		AgentSubject(7, netip.MustParseAddr("fd00::a:1")):    "procfleet.agent.7.fd00--a-1",
		PresenceSubject(7):    "procfleet.presence.7",
		PresenceAll:           "procfleet.presence.*",
		ResultSubject("s", 0): "procfleet.result.s.0",
		ResultsOfLane("b"):    "procfleet.result.b.*",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSubjectsHaveFixedNumbersOfTokens(t *testing.T) {
	t.Parallel()
	for _, ip := range []string{"10.0.0.1", "fd00::1", "::1", "2001:db8::ffff:10.0.0.1"} {
		subject := AgentSubject(3, netip.MustParseAddr(ip))
		if n := strings.Count(subject, "."); n != 3 {
			t.Errorf("%s: %q has %d tokens, want 4", ip, subject, n+1)
		}
		if strings.ContainsAny(subject, " *>:%") {
			t.Errorf("%s: %q", ip, subject)
		}
	}
}

func TestLanes(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"s", "b", "lane2"} {
		if err := ValidLane(lane); err != nil {
			t.Error(err)
		}
	}
	for _, lane := range []string{"", "a.b", "S", "*", ">", "a b"} {
		if ValidLane(lane) == nil {
			t.Errorf("lane %q is accepted", lane)
		}
	}
}

func TestBoundedLeavesSmallResultsAlone(t *testing.T) {
	t.Parallel()
	want := fullResult(time.Unix(1, 0).UTC())
	if diff := cmp.Diff(want, want.Bounded()); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

func TestBoundedCutsAndDoesNotTouchTheOriginal(t *testing.T) {
	t.Parallel()
	r := fullResult(time.Unix(1, 0).UTC())
	r.Message = strings.Repeat("é", MaxMessage)
	r.Status.Evidence = strings.Repeat("\x01", MaxResult)
	r.Warnings = []string{strings.Repeat("w", MaxResult)}
	b := r.Bounded()
	if len(b.Message) > MaxMessage || !strings.HasPrefix(b.Message, "éé") || strings.ContainsRune(b.Message, '\uFFFD') {
		t.Errorf("message of %d bytes ends in %q", len(b.Message), b.Message[len(b.Message)-8:])
	}
	if b.encodedSize() > MaxResult {
		t.Errorf("%d bytes", b.encodedSize())
	}
	if b.Code != r.Code || b.Reason != r.Reason || b.Status.PID != r.Status.PID {
		t.Error("facts were cut")
	}
	if len(r.Status.Evidence) != MaxResult || len(r.Warnings[0]) != MaxResult {
		t.Error("the original was cut")
	}
}

func TestACommandIsEncodedAsAnyMessageIs(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		command := Command{Header: Header{Type: TypeCommand, ID: "1", Sent: time.Unix(1, 0).UTC()}, Host: "0:10.0.0.1", Items: []CommandItem{{Item: 7, Action: ActionStop}}}
		for range n {
			command.Specs = append(command.Specs, []byte(`{"key":"a","proc_name":"]}","start_cmd":"x \"y\""}`))
		}
		want, err := Encode(&command)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := EncodeCommand(&command); err != nil || string(got) != string(want) {
			t.Errorf("%d specs: %s, %v; want %s", n, got, err, want)
		}
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]time.Duration{-1: 0, 0: 0, 1500: 1500 * time.Millisecond, 1 << 62: MaxRetryAfter} {
		if got := (&Receipt{RetryAfterMS: ms}).RetryAfter(); got != want {
			t.Errorf("%d ms: %s, want %s", ms, got, want)
		}
	}
}

func TestRepliesOfServersReachOnlyInboxesOfAgents(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("10.0.0.1")
	if inbox := AgentInbox(3, addr); inbox != "_INBOX.3.10-0-0-1" || !ToAgent(inbox+".1") {
		t.Errorf("inbox %s is not one of an agent", inbox)
	}
	if subject := AgentSubject(3, addr); ToAgent(subject) {
		t.Errorf("a reply may be sent to %s", subject)
	}
}

func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	var m Receipt
	items := strings.Repeat("1,", MaxItems) + "1"
	if err := Decode([]byte(`{"type":"`+TypeReceipt+`","stored":[`+items+`]}`), TypeReceipt, &m); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d items: %v", MaxItems+1, err)
	}
}
