package deploy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// anchors returns the anchors of a page's headings.
func anchors(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, heading := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		words := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found = append(found, strings.ReplaceAll(words, " ", "-"))
	}
	return found
}

// metricLabels returns the labels of every metric in docs/reference/metrics.md. The
// end-to-end tests compare this page with a running system.
func metricLabels(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if head, _, _ := strings.Cut(line, ":"); strings.HasPrefix(head, "* `procfleet_") {
			names, labels, _ := strings.Cut(head, " by ")
			for _, name := range regexp.MustCompile("`(procfleet_[a-z_]+)`").FindAllStringSubmatch(names, -1) {
				known[name[1]] = labels
			}
		}
	}
	return known
}

func TestEveryAlertFiresAndLinksToItsRunbook(t *testing.T) {
	t.Parallel()
	var alerts []struct {
		Alert, Expr   string
		Annotations   map[string]string
		Fired, Silent bool
	}
	deploycheck(t, &alerts, "", "alerts", "prometheus/alerts.yaml", "prometheus/alerts_test.yaml")
	var expressions []string
	for _, a := range alerts {
		expressions = append(expressions, a.Expr)
		if !a.Fired || !a.Silent {
			t.Errorf("the tests of %s cover that it fires: %v, and that it does not fire: %v", a.Alert, a.Fired, a.Silent)
		}
		page, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "#")
		page, ours := strings.CutPrefix(page, "https://github.com/procfleet/procfleet/blob/main/docs/")
		if a.Annotations["summary"] == "" || !ours || anchor != "" && !slices.Contains(anchors(t, "../docs/"+page), anchor) {
			t.Errorf("%s: summary %q, runbook %s#%s", a.Alert, a.Annotations["summary"], page, anchor)
		}
		if _, err := os.Stat("../docs/" + page); err != nil {
			t.Errorf("%s: runbook: %v", a.Alert, err)
		}
	}
	mustUseWhatIsThere(t, expressions)
}

// mustUseWhatIsThere checks that PromQL expressions use only existing metrics and
// labels.
func mustUseWhatIsThere(t *testing.T, expressions []string) {
	t.Helper()
	asked, err := json.Marshal(expressions)
	if err != nil {
		t.Fatal(err)
	}
	var used [][]struct {
		Metric string
		Labels []string
	}
	deploycheck(t, &used, string(asked), "expressions")
	known := metricLabels(t)
	for i, of := range used {
		if len(of) == 0 {
			t.Errorf("%s uses no metric", expressions[i])
		}
		for _, u := range of {
			name := u.Metric
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
			labels, there := known[name]
			if !there {
				t.Errorf("%s: unknown metric %s", expressions[i], u.Metric)
			}
			for _, l := range u.Labels {
				if l != "le" && !strings.Contains(labels, "`"+l+"`") {
					t.Errorf("%s: %s has no label %s", expressions[i], u.Metric, l)
				}
			}
		}
	}
}
