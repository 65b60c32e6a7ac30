package operate

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agentproto"
)

func TestPolicyOfSpec(t *testing.T) {
	t.Parallel()
	s := agentproto.Spec{Type: procspec.Resident, StartRetries: 4, StartIntervalMS: 10_000}
	timing := Timing{}.withDefaults()
	if p := policyOf(&s, timing); !p.Resident || p.Interval != 10*time.Second || p.StableAfter != 10*time.Minute || p.Retries != 4 {
		t.Errorf("policy is %+v", p)
	}
	s.StartIntervalMS, s.Type = 600_000, "periodic"
	if p := policyOf(&s, timing); p.Resident || p.StableAfter != 100*time.Minute {
		t.Errorf("policy is %+v", p)
	}
}
