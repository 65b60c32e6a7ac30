package fleetkey

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestAnAgentIDIsOfTheHostThatWasEnrolledWithIt(t *testing.T) {
	t.Parallel()
	server := ring(t, map[string]int{"3:10.0.0.9": 2}, "k2", "k1")
	const id = "0200:thing"
	for _, c := range []struct {
		name       string
		from       *Host
		host, says string
		want       error
	}{
		{"held", server.Enroll(host, id), host, id, nil},
		{"held with an older key", ring(t, nil, "k1").Enroll(host, id), host, id, nil},
		{"held in a later generation", server.Enroll("3:10.0.0.9", id), "3:10.0.0.9", id, nil},
		{"none claimed", server.Host(host), host, "", nil},
		{"one held, none claimed", server.Enroll(host, id), host, "", nil},
		{"no id held", server.Host(host), host, id, ErrAgentIDNotHeld},
		{"another id held", server.Enroll(host, "mine"), host, id, ErrAgentIDNotHeld},
		{"another host's", server.Enroll("3:10.0.0.2", id), host, id, ErrAgentIDNotHeld},
		{"of a generation that was revoked", ring(t, nil, "k1").Enroll("3:10.0.0.9", id), "3:10.0.0.9", id, ErrAgentIDNotHeld},
		{"of another fleet", ring(t, nil, "k3").Enroll(host, id), host, id, ErrAgentIDNotHeld},
		{"text moved from id to host", server.Enroll("3:10.0.0.1", "0"+id), "3:10.0.0.10", id, ErrAgentIDNotHeld},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			header := map[string][]string{}
			c.from.Sign(header, message())
			if err := server.VerifyAgentID(header, c.host, c.says); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	if err := (*Ring)(nil).VerifyAgentID(nil, host, id); err != nil {
		t.Errorf("without keys: %v", err)
	}
	if h := (*Ring)(nil).Enroll(host, id); h.AgentID() != "" {
		t.Errorf("enrolled without keys: %+v", h)
	}
	many := map[string][]string{}
	for range maxSignatures {
		many[proofHeader] = append(many[proofHeader], "no proof")
	}
	server.Enroll(host, id).Sign(many, message())
	if err := server.VerifyAgentID(many, host, id); err == nil {
		t.Error("more proofs were looked at than a ring has keys")
	}
}

func TestHeadersOfAnEnrolledHostFitTheirRoom(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", maxID)
	f := File{Generations: map[string]int{host: 1_000_000}}
	for i, id := range []string{"k1", "k2", "k3", "k1"} {
		f.Keys = append(f.Keys, Key{ID: string(rune('a'+i)) + long[1:], Secret: testSecrets[id]})
	}
	r, err := f.Ring()
	if err != nil {
		t.Fatal(err)
	}
	header, size := map[string][]string{}, 0
	r.Enroll(host, "id").Sign(header, message())
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	if len(header) != 2 || size > HeaderRoom {
		t.Errorf("%d headers of %d bytes, room is for %d", len(header), size, HeaderRoom)
	}
}

func TestAnIdentityKeepsItsAgentID(t *testing.T) {
	t.Parallel()
	made := &Identity{Host: ring(t, nil, "k2", "k1").Enroll(host, "0200:thing"), NATS: "user\n"}
	text, err := made.Text()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseIdentity(text)
	if err != nil || !reflect.DeepEqual(again, made) || again.Host.AgentID() != "0200:thing" {
		t.Errorf("read again: %+v, %v", again, err)
	}
	for what, broken := range map[string]string{
		"agent_id_proof": strings.Replace(string(text), "agent_id_proof: ", "agent_id_proof: A", 1),
		"agent_id":       strings.Replace(string(text), "0200:thing", "0:10.0.0.9", 1),
	} {
		if _, err := ParseIdentity([]byte(broken)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s is broken: %v", what, err)
		}
	}
}

func TestWhatIsNoAgentIDIsNotEnrolled(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "0200000000525400:b", "10.0.0.1", "0:nginx", strings.Repeat("x", MaxAgentID)} {
		if err := ValidAgentID(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", MaxAgentID+1), "a\nb", "a\x00", "\xff", "0:10.0.0.1", "3:fd00::1"} {
		if ValidAgentID(bad) == nil {
			t.Errorf("%q is an agent id", bad)
		}
	}
}
