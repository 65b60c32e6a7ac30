package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/cmd/internal/command"
)

const (
	noTopology  = `{"version":0,"auto_register":false,"sets":[],"without_agent":[],"without_module":["0:10.0.0.9"]}`
	oneTopology = `{"version":3,"auto_register":false,"sets":[{"name":"s1","modules":[
		{"name":"web","default":0,"hosts":["0:10.0.0.1","0:10.0.0.2"]},{"name":"old","default":0,"hosts":["0:10.0.0.1"]}]}],"without_agent":null,"without_module":null}`
	newTopologyText = `{"version":4,"auto_register":true,"sets":[{"name":"s1","modules":[
		{"name":"web","default":0,"hosts":["0:10.0.0.2","0:10.0.0.3","0:10.0.0.4","0:10.0.0.5","0:10.0.0.6","0:10.0.0.7","0:10.0.0.8"]},{"name":"idle","default":1,"hosts":[]}]},{"name":"a,b","modules":[]}],
		"without_agent":["0:10.0.0.2"],"without_module":null}`
	versionFour = `{"version":4}`
)

func TestApplyingATopologyTellsWhatChanged(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte("of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const put = "PUT /v1/topology/2"
	for name, test := range map[string]struct {
		args   []string
		before string
		asked  string
		said   string
	}{
		"YAML": {[]string{"-f", file("t.yaml")}, oneTopology, put + " of t.yaml", `version 4, was 3; binding registers
s1/web changed, +6: 0:10.0.0.3 0:10.0.0.4 0:10.0.0.5 0:10.0.0.6 0:10.0.0.7 and 1 more, -1: 0:10.0.0.1
s1/idle added
s1/old removed, -1: 0:10.0.0.1
`},
		"CSV that says more":  {[]string{"-f", file("t.CSV"), "--auto-register=false", "--replaces", "3"}, newTopologyText, put + "?auto_register=false of t.CSV", "no changes of hosts\n"},
		"another name":        {[]string{"-f", file("hosts"), "--format", "json", "--account", "acme"}, noTopology, put + "?account=acme of hosts", "version 4, was 0; binding registers\ns1/web added, +7: "},
		"auto register alone": {[]string{"--auto-register"}, newTopologyText, `PATCH /v1/topology/2 {"auto_register":true}`, "binding registers\n"},
		"as JSON":             {[]string{"-f", file("t.yml"), "--json"}, oneTopology, put + " of t.yml", `"what": "removed"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAnswers(t, test.before, versionFour, newTopologyText)
			code, stdout, stderr := call(t, append([]string{"topology", "apply", "--biz", "2", "--server", server.URL}, test.args...)...)
			if code != 0 || !strings.Contains(stdout, test.said) {
				t.Errorf("exit %d\n%s%s", code, stdout, stderr)
			}
			if server.asked[1] != test.asked || !strings.HasPrefix(server.asked[0], "GET /v1/topology/2?") || server.asked[2] != server.asked[0] {
				t.Errorf("asked %q", server.asked)
			}
		})
	}
}

func TestATopologyIsShownToPeopleAndAsAFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args, answer, asked, said string
	}{
		"a table": {"", newTopologyText, "", `version 4
SET  MODULE  DEFAULT  HOST        AGENT
s1   web     0        0:10.0.0.2  none
s1   web     0        0:10.0.0.3  yes
s1   web     0        0:10.0.0.4  yes
s1   web     0        0:10.0.0.5  yes
s1   web     0        0:10.0.0.6  yes
s1   web     0        0:10.0.0.7  yes
s1   web     0        0:10.0.0.8  yes
s1   idle    1        -           -
a,b  -       -        -           -
`},
		"none": {"", noTopology, "", "the business has no topology; make one with: procfleet topology apply\n1 hosts with an agent are in no module: 0:10.0.0.9\n"},
		"YAML": {" --format yaml", oneTopology, "?agents=false", `auto_register: false
sets:
- modules:
  - default: 0
    hosts:
    - 0:10.0.0.1
    - 0:10.0.0.2
    name: web
  - default: 0
    hosts:
    - 0:10.0.0.1
    name: old
  name: s1
`},
		"CSV":  {" --format csv", newTopologyText, "?agents=false", "s1,web,0:10.0.0.8,0\ns1,idle,,1\n\"a,b\",,,\n"},
		"JSON": {" --json", noTopology, "", `"without_module": [`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveAnswers(t, test.answer)
			code, stdout, stderr := call(t, strings.Fields("topology show --biz 2 --server "+server.URL+test.args)...)
			if code != 0 || !strings.Contains(stdout, test.said) {
				t.Errorf("exit %d\n%s%s", code, stdout, stderr)
			}
			if server.asked[0] != "GET /v1/topology/2"+test.asked+" " {
				t.Errorf("asked %q", server.asked)
			}
		})
	}
}

func TestATopologyThatIsNotAskedForRightlyIsAMistakeOfUse(t *testing.T) {
	t.Parallel()
	for args, said := range map[string]string{
		"topology":                                            "topology",
		"topology show":                                       "--biz",
		"topology show --biz 0":                               "--biz",
		"topology show --biz 2 --format xml":                  "--format",
		"topology show --biz 2 --format csv --json":           "--format",
		"topology apply --biz 2":                              "-f is required",
		"topology apply --biz 2 -f topology":                  "--format",
		"topology apply --biz 2 -f no/such.yaml":              "no such file",
		"topology apply --biz 2 --auto-register --replaces 3": "--replaces",
	} {
		if code, _, stderr := call(t, strings.Fields(args)...); code != command.ExitUsage || !strings.Contains(stderr, said) {
			t.Errorf("%s: exit %d, %s", args, code, stderr)
		}
	}
}
