package agentcmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agent/hostcheck"
)

func TestCheckReportsForPeopleAndPrograms(t *testing.T) {
	t.Parallel()
	one := []hostcheck.Finding{{Check: hostcheck.KillMode, Problem: "how it is", Consequence: "what may happen", Remedy: "what to do"}}
	for name, test := range map[string]struct {
		found    []hostcheck.Finding
		asJSON   bool
		says     string
		failsFor string
	}{
		"nothing":           {nil, false, "this host has no risks to supervised processes\n", ""},
		"nothing as JSON":   {nil, true, "{\n  \"safe\": true,\n  \"findings\": []\n}\n", ""},
		"something":         {one, false, "kill_mode     how it is\n              why: what may happen\n              do:  what to do\n", "unsafe host, findings: 1"},
		"something as JSON": {one, true, `"safe": false`, "unsafe host, findings: 1"},
		"more":              {append(one, one...), true, `"check": "kill_mode"`, "unsafe host, findings: 2"},
	} {
		var out bytes.Buffer
		err := report(&out, test.asJSON, test.found)
		if !strings.Contains(out.String(), test.says) {
			t.Errorf("%s: said %q", name, out.String())
		}
		if (err == nil) != (test.failsFor == "") || err != nil && !strings.HasPrefix(err.Error(), test.failsFor) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
