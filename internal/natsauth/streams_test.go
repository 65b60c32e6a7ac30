package natsauth_test

import (
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// No right of an agent or of a leaf node may overlap with a subject of a stream: JetStream would send its
// acknowledgement to any subject that the publisher names.
func TestNoRightOfAnAgentIsASubjectOfAStream(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	js, err := bus.JetStream(s.as(natsauth.Server, 0).Conn)
	if err != nil {
		t.Fatal(err)
	}
	reserved := []string{"$JS.>", "$SYS.>", "$KV.>", "$O.>"}
	streams := s.streams(js)
	for _, info := range streams {
		reserved = append(reserved, info.Config.Subjects...)
	}
	for role, rights := range s.mayPublish(natsauth.Agent, natsauth.Leaf) {
		if len(rights) == 0 || len(streams) == 0 {
			t.Fatalf("%s has %d rights, and there are %d streams", role, len(rights), len(streams))
		}
		for _, right := range rights {
			for _, subject := range reserved {
				if server.SubjectsCollide(right, subject) {
					t.Errorf("%s may publish to %s, which overlaps with %s", role, right, subject)
				}
			}
		}
	}
}

// mayPublish returns the subjects to which roles of the fleet's account may publish, with
// wildcards for the parts that differ by user.
func (s *site) mayPublish(roles ...natsauth.Role) map[natsauth.Role][]string {
	s.t.Helper()
	broker, err := s.authority.Broker()
	if err != nil {
		s.t.Fatal(err)
	}
	claims, err := jwt.DecodeAccountClaims(broker.Accounts[broker.Account])
	if err != nil {
		s.t.Fatal(err)
	}
	rights := map[natsauth.Role][]string{}
	for _, role := range roles {
		rights[role] = nil
	}
	for _, scope := range claims.SigningKeys {
		of := scope.(*jwt.UserScope)
		role := natsauth.Role(of.Role)
		if _, asked := rights[role]; !asked {
			continue
		}
		for _, right := range of.Template.Pub.Allow {
			rights[role] = append(rights[role], strings.NewReplacer("{{tag(cloud)}}", "*", "{{tag(host)}}", "*").Replace(right))
		}
	}
	return rights
}
