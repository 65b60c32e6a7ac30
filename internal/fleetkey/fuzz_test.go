package fleetkey

import (
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// FuzzParse parses arbitrary fleet keys and host identities. Errors must contain no secret, and a parsed
// value must stay equal when it is written and parsed again.
func FuzzParse(f *testing.F) {
	const secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	f.Add("keys:\n- id: k1\n  secret: " + secret + "\ngenerations:\n  0:10.0.0.1: 2\n")
	f.Add("host: 0:10.0.0.1\nkeys:\n- id: k1\n  generation: 1\n  secret: " + secret + "\nnats: |\n  x\n")
	f.Add("host: 0:10.0.0.1\nagent_id: a-1\nkeys:\n- id: k1\n  generation: 1\n  secret: " + secret + "\n  agent_id_proof: " + secret + "\n")
	f.Add("keys: [{id: k1, id: k2, secret: " + secret + "x}]")
	f.Fuzz(func(t *testing.T, text string) {
		ring, ringErr := Parse([]byte(text))
		identity, err := ParseIdentity([]byte(text))
		for _, err := range []error{ringErr, err} {
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("a secret is told: %v", err)
			}
		}
		if ringErr == nil {
			kept, err := yaml.Marshal(&File{Keys: ring.keys, Generations: ring.generations})
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse(kept)
			if err != nil || !reflect.DeepEqual(again.Host("0:10.0.0.1"), ring.Host("0:10.0.0.1")) {
				t.Errorf("another ring is read again: %v", err)
			}
		}
		if err == nil {
			kept, err := identity.Text()
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseIdentity(kept)
			if err != nil || !reflect.DeepEqual(again, identity) {
				t.Errorf("another identity is read again: %v", err)
			}
		}
	})
}
