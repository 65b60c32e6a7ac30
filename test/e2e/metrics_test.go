//go:build linux

package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// documented is the list item of a metric in docs/reference/metrics.md.
type documented struct {
	labels map[string]bool
	always bool // exists after the first task
}

var (
	metricName = regexp.MustCompile("`(procfleet_[a-z_]+)`( °)?")
	labelName  = regexp.MustCompile("`([a-z_]+)`")
	sample     = regexp.MustCompile(`(?m)^(procfleet_[a-z_]+)(?:\{([^}]*)\})? `)
	label      = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
	// particular matches label values that would add a series per host, task,
	// trace, instance or caller's file.
	particular = regexp.MustCompile(`\d+[.-]\d+[.-]\d+|GSETASK|[0-9a-f]{16}|[/:]`)
)

// documentedMetrics parses the list items: names, "by" labels, a colon and the meaning.
func documentedMetrics(t *testing.T) map[string]documented {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]documented{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "* `procfleet_") {
			continue
		}
		head, _, _ := strings.Cut(line, ":")
		names, by, _ := strings.Cut(head, " by ")
		labels := map[string]bool{}
		for _, l := range labelName.FindAllStringSubmatch(by, -1) {
			labels[l[1]] = true
		}
		for _, name := range metricName.FindAllStringSubmatch(names, -1) {
			all[name[1]] = documented{labels, name[2] == ""}
		}
	}
	return all
}

// scrape returns the metrics of a role: the values of each label by name.
func scrape(t *testing.T, url string) map[string]map[string][]string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string][]string{}
	for _, s := range sample.FindAllStringSubmatch(string(text), -1) {
		name := s[1]
		for _, part := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, part)
		}
		if found[name] == nil {
			found[name] = map[string][]string{}
		}
		for _, l := range label.FindAllStringSubmatch(s[2], -1) {
			if l[1] != "le" {
				found[name][l[1]] = append(found[name][l[1]], l[2])
			}
		}
	}
	return found
}

func TestEveryMetricIsDocumentedAndNoneNamesAHost(t *testing.T) {
	t.Parallel()
	f, into := newFleet(t, 1), startCollector(t)
	onHost := testenv.FreeAddress(t)
	f.agents[0].child.Kill()
	f.agents[0].start("PROCFLEET_STATUS_HTTP=" + onHost)
	f.agents[0].child.WaitHTTP(t, startTimeout, "http://"+onHost+"/readyz")
	observe := testenv.FreeAddress(t)
	addr := testenv.FreeAddress(t)
	common := []string{"--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL(), "--otlp", into.URL}
	dispatcher := testenv.StartChild(t, nil, f.programs.procfleet, append([]string{"dispatcher", "--http", addr}, common...)...)
	worker := testenv.StartChild(t, nil, f.programs.procfleet, append([]string{"worker", "--status-http", observe, "--callback-allow", "127.0.0.1"}, common...)...)
	dispatcher.WaitHTTP(t, startTimeout, "http://"+addr+"/readyz")
	worker.WaitHTTP(t, startTimeout, "http://"+observe+"/readyz")
	c := &client{t: t, url: "http://" + addr}
	f.waitListed(c, 1)

	called := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer called.Close()
	body := operation("start", append(f.procs.grid(f.hosts(1), 1, "measured"), f.procs.new("0:10.98.0.1", "nobody")))
	body["callback"] = called.URL
	id := c.submit(body)
	if last := c.wait(id); last.Counts["succeeded"] != 1 || last.Counts["unreachable"] != 1 {
		t.Fatalf("counts %v", last.Counts)
	}
	f.waitFinishedEvent(id)

	known := documentedMetrics(t)
	if len(known) < 20 {
		t.Fatalf("only %d metrics are documented: %v", len(known), known)
	}
	var missing []string
	defer func() {
		if len(missing) > 0 {
			t.Errorf("documented, but not exported: %v", missing)
		}
	}()
	testenv.Eventually(t, startTimeout, func() bool {
		found := scrape(t, "http://"+addr)
		for _, address := range []string{observe, onHost} {
			for name, labels := range scrape(t, "http://"+address) {
				if found[name] == nil {
					found[name] = labels
				}
			}
		}
		checkSeries(t, found, known)
		missing = nil
		for name, d := range known {
			if d.always && found[name] == nil {
				missing = append(missing, name)
			}
		}
		return len(missing) == 0 || t.Failed()
	}, "every documented metric is there")
}

func checkSeries(t *testing.T, found map[string]map[string][]string, known map[string]documented) {
	t.Helper()
	for name, labels := range found {
		d, there := known[name]
		if !there {
			t.Errorf("metric %s is not in docs/reference/metrics.md", name)
			continue
		}
		for l, values := range labels {
			if !d.labels[l] {
				t.Errorf("label %s of metric %s is not in docs/reference/metrics.md", l, name)
			}
			for _, v := range values {
				if particular.MatchString(v) {
					t.Errorf("%s{%s=%q} may be the name of one host, task or caller", name, l, v)
				}
			}
		}
	}
}
