package faults

import (
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

func TestMain(m *testing.M) {
	testenv.WithoutProfile()
	defer testenv.CleanUp()
	m.Run()
}

// row is one fault with its test. The host has no agent yet.
type row struct {
	name string
	run  func(*testing.T, *agenttest.Host)
}

func TestFaultMatrix(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t) // accounts, namespaces and file systems need root
	nats := testenv.StartNATS(t)
	for _, rows := range [][]row{pidFileRows, startRows, stopRows, recoveryRows, commandRows, identityRows, superviseRows, limitRows, hostRows} {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				t.Parallel()
				row.run(t, agenttest.New(t, nats))
			})
		}
	}
}
