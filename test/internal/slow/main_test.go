package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"github.com/procfleet/procfleet/agent"}
{"Action":"pass","Package":"github.com/procfleet/procfleet/agent","Test":"TestQuick","Elapsed":0.5}
{"Action":"pass","Package":"github.com/procfleet/procfleet/agent","Test":"TestSlow/part","Elapsed":7}
{"Action":"fail","Package":"github.com/procfleet/procfleet/agent","Test":"TestSlow","Elapsed":8.26}
{"Action":"skip","Package":"github.com/procfleet/procfleet/agent","Test":"TestSkipped","Elapsed":0}
{"Action":"fail","Package":"github.com/procfleet/procfleet/agent","Elapsed":9}
`

const want = `Compiling and linking all tests took 70 s.

| package | seconds |
| --- | --- |
| agent | 9 |

| test | package | seconds |
| --- | --- | --- |
| TestSlow | agent | 8.3 |
| TestQuick | agent | 0.5 |
`

func TestTheSlowestPackagesAndTestsAreWrittenIntoThePage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, page := filepath.Join(dir, "events.json"), filepath.Join(dir, "page.md")
	for name, text := range map[string]string{log: events, page: "before\n<!-- slowest tests -->\nold\n<!-- end of slowest tests -->\nafter\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{log}, 70, page); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != "before\n<!-- slowest tests -->\n"+want+"<!-- end of slowest tests -->\nafter\n" {
		t.Errorf("the page is %q, %v", got, err)
	}
}

func TestPackagesBeyondTheLastRowAreSummed(t *testing.T) {
	t.Parallel()
	var all []timed
	for range packages + 3 {
		all = append(all, timed{Package: "p", Elapsed: 2})
	}
	if got := render(all, 0); !strings.Contains(got, "| 3 others together | 6 |\n") {
		t.Errorf("no sum of the others:\n%s", got)
	}
}
