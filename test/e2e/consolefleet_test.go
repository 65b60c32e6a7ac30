//go:build linux

package e2e

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/procfleet/procfleet/internal/testenv"
)

var consoleChanges = flag.Int("console.changes", 100, "number of changes of the open page in TestTheConsoleShowsABigTask")

// TestTheConsoleShowsABigTask follows a rollout of 10,000 items, in the long form of 100,000, on simulated
// hosts while the dispatcher and NATS are killed.
func TestTheConsoleShowsABigTask(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	const per = 50
	hosts := unlessLong(200, 2000)
	dispatcher, c := f.dispatcher("")
	f.worker("")
	f.simulate(hosts, "1ms")
	b := newBrowser(t, c.url)
	b.open("")
	b.waitText("#agents", grouped(hosts))

	names := simulatedHosts(hosts)
	var operations []map[string]any
	for i := range per {
		spec := simulatedSpec()
		spec["name"] = fmt.Sprintf("sim-%d", i)
		operations = append(operations, map[string]any{"action": "start", "process": spec, "hosts": names})
	}
	id := c.submit(map[string]any{
		"operations": operations, "timeout": "10m",
		"rollout": map[string]any{"max_concurrency": hosts / 5, "ramp": []any{"50%"}, "stage": map[string]any{"gates": []string{"manual"}}},
	})
	b.open("tasks/" + id)
	b.waitText("#items", grouped(hosts*per))
	b.waitFor("document.getElementById('count-succeeded')")

	c.waitHeld(id, "approval") // half of the hosts remain, however fast the first ones are
	c.control(id, "pause")
	b.waitFor("document.getElementById('hold') && !document.getElementById('count-delivered')") // results in flight would take the sweep
	dispatcher.Kill()
	b.waitFor("!document.getElementById('lost').hidden")
	testenv.StartChild(t, nil, f.programs.procfleet, "dispatcher", "--http", strings.TrimPrefix(c.url, "http://"),
		"--nats", f.broker.URL, "--fleet-key", f.keys.file, "--redis", f.redis.URL()).WaitHTTP(t, startTimeout, c.url+"/readyz")
	b.waitFor("document.getElementById('lost').hidden")
	f.broker.Kill()
	overview := newBrowser(t, c.url)
	overview.open("")
	overview.waitText(".concerns", "cannot accept operations")
	f.broker.Start()
	overview.waitFor("!document.querySelector('.concerns').innerText.includes('cannot accept')")
	c.control(id, "resume")
	if status := c.approve(id, 1); status != http.StatusOK {
		t.Fatalf("approval: %d", status)
	}

	b.waitText("h1", "finished")
	end := c.wait(id)
	for state, n := range end.Counts {
		if shown := strings.ReplaceAll(b.text("#count-"+state), "\u202f", ""); n > 0 && shown != strconv.Itoa(n) {
			t.Errorf("the page shows %q items %s, the API %d", shown, state, n)
		}
	}
	for _, path := range append(consolePages, "tasks/"+id, "tasks/"+id+"?state=succeeded", "hosts/0:10.0.0.0") {
		b.open(path)
		b.isSmall(path)
	}
	if testenv.IsLong() {
		b.clicks(id)
	}
	b.open("tasks/" + id)
	b.doesNotGrow()
}

// grouped returns a number as pages show it.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s\u202f%03d", grouped(n/1000), n%1000)
}

// isSmall checks the page that is shown, with its files.
func (b *browser) isSmall(path string) {
	b.t.Helper()
	b.waitFor("document.readyState === 'complete' && document.getElementById('main')")
	rows := eval[int](b, "document.querySelectorAll('tbody > tr').length")
	weight := eval[int](b, `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].reduce((sum, e) => sum + e.decodedBodySize, 0)`)
	b.t.Logf("%-24q %3d rows, %3d KiB with its files", path, rows, weight>>10)
	if rows > 200 || weight > 200<<10 {
		b.t.Errorf("the page %q has %d rows and %d bytes with its files, want at most 200 rows and 200 KiB", path, rows, weight)
	}
}

// clicks measures how long a click on the task takes until its page shows it, and, as the floor of the
// machine, a click on a page without data.
func (b *browser) clicks(id string) {
	b.t.Helper()
	click := func(link, shown string) time.Duration {
		var took []time.Duration
		for range 7 {
			b.open("tasks")
			start := time.Now()
			b.click(link)
			b.poll(fmt.Sprintf("document.querySelector(%q)", shown), 5*time.Millisecond)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	floor := click(`nav a[data-key="p"]`, "#operation")
	task := click(fmt.Sprintf(`a[href$="%s"]`, id), "#states")
	b.t.Logf("a click on the task shows it in %v; on a page without data in %v: ratio %.2f", task, floor, float64(task)/float64(floor))
}

// doesNotGrow changes the content of a page many times, and compares what the browser holds before and
// after. A page that is open for an hour changes at most 3,600 times.
func (b *browser) doesNotGrow() {
	b.t.Helper()
	type held struct {
		nodes, listeners int64
		heap             float64
	}
	measure := func() (h held) {
		b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			if _, err := cdp.Call(ctx, t, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
				return err
			}
			counters, err := cdp.Call(ctx, t, memory.GetDOMCounters, cdp.Empty{})
			if err != nil {
				return err
			}
			usage, err := cdp.Call(ctx, t, runtime.GetHeapUsage, cdp.Empty{})
			h = held{counters.Nodes, counters.JsEventListeners, usage.UsedSize}
			return err
		}))
		return h
	}
	change := func(times int) {
		b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`(async () => {
			const at = document.querySelector("script[src]").src.replace("console.js", "");
			const { morphContent } = await import(at + "morph.js");
			const main = document.getElementById("main"), now = main.innerHTML;
			const parse = (text) => new DOMParser().parseFromString(text, "text/html").body;
			for (let i = 0; i < %d; i++) {
				morphContent(main, parse(now.replaceAll("succeeded", "failed").replace("<tr", "<tr></tr><tr").replaceAll("1", String(i %% 10))));
				morphContent(main, parse(now));
			}
		})()`, times), chromedp.EvalAwaitPromise))
	}
	change(20)
	before := measure()
	for left := *consoleChanges / 2; left > 0; left -= 50 { // each call has a deadline
		change(min(left, 50))
	}
	var after held
	defer func() { b.t.Logf("before %+v, after %d changes %+v", before, *consoleChanges, after) }()
	testenv.Eventually(b.t, finishTimeout, func() bool { // one collection does not find everything that a browser drops
		after = measure()
		return after.nodes <= before.nodes+before.nodes/10+200 && after.listeners <= before.listeners+10 && after.heap <= 1.5*before.heap+1<<20
	}, "the page holds as much as before its changes")
}
