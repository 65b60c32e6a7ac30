//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
)

// consolePages are the pages that need no object.
var consolePages = []string{"", "tasks", "operate", "hosts", "processes", "catalog", "catalog?business=2", "rules", "rules?namespace=e2e", "webhooks", "events", "audit", "search?q=web"}

// TestTheConsoleShowsWhatTheAPIReports compares pages with responses of the API, while 40 real processes
// start, one is killed, and the whole system is killed and started again.
func TestTheConsoleShowsWhatTheAPIReports(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	all := procs.grid([]string{"0:127.0.0.1"}, 40, "web")
	for _, p := range all {
		u.c.register(p)
	}
	b := newBrowser(t, u.c.url)

	id := u.c.submit(operation("start", all))
	b.open("tasks/" + id)
	b.waitText("h1", "finished")
	end := u.c.wait(id)
	verifyResults(t, u.c.results(id, len(all)), all)
	if shown := b.text("#count-succeeded"); shown != strconv.Itoa(end.Counts["succeeded"]) {
		t.Errorf("the page shows %q succeeded items, the API %d", shown, end.Counts["succeeded"])
	}
	if rows := eval[int](b, "document.querySelectorAll('#results tbody > tr').length"); rows != 40 {
		t.Errorf("%d rows, want one for each of 40 items", rows)
	}

	b.open("")
	b.waitText("#up", "40")
	b.open("hosts/0:127.0.0.1")
	b.waitFor("document.querySelectorAll('a[href*=\"processes/e2e:\"]').length >= 40")

	killed := all[0]
	before := killed.pid()
	b.open("hosts/0:127.0.0.1/processes/" + url.PathEscape("e2e:"+killed.name))
	b.waitText("#pid", strconv.Itoa(before))
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.waitFor(fmt.Sprintf("!['', '%d'].includes(document.querySelector('#pid')?.innerText ?? '')", before))
	if shown := b.text("#pid"); shown != strconv.Itoa(killed.pid()) {
		t.Errorf("the page shows pid %s, the process has %d", shown, killed.pid())
	}

	b.do(chromedp.Evaluate[chromedp.Void]("window.sameDocument = true"))
	u.child.Kill()
	b.waitFor("!document.getElementById('lost').hidden && document.querySelector('#lost time').dateTime !== ''")
	u.start()
	b.waitFor("document.getElementById('lost').hidden")
	if !eval[bool](b, "window.sameDocument === true") {
		t.Error("the page was loaded again, instead of following the restarted server")
	}
	b.waitText("#pid", strconv.Itoa(killed.pid()))

	u.child.Signal(syscall.SIGTERM)
	if code := u.child.Wait(t, startTimeout); code != 0 || strings.Contains(u.child.Output(), "requests aborted") {
		t.Errorf("exit code %d; an open page must not delay the end of the server", code)
	}
}

func (c *client) register(p proc) {
	c.t.Helper()
	status, answer, ok := c.call(http.MethodPut, "/v1/registrations", "", map[string]any{"process": p.spec(), "hosts": []string{p.host}})
	if !ok || status != http.StatusOK {
		c.t.Fatalf("register %s: %d %s", p.name, status, answer)
	}
}

// TestAnOperatorRestartsAProcessInTheConsole plans and submits an operation with forms and buttons alone,
// and pauses, resumes and cancels a task that another browser shows.
func TestAnOperatorRestartsAProcessInTheConsole(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	p := procs.new("0:127.0.0.1", "nginx")
	u.c.register(p)
	u.c.wait(u.c.submit(operation("start", []proc{p})))
	before := p.pid()

	b := newBrowser(t, u.c.url)
	b.open("operate")
	b.fill("select[name=action]", "restart")
	b.fill("input[name=namespace]", "e2e")
	b.fill("input[name=name]", "nginx")
	b.click("#operation button")
	b.waitText("#planned", "1")
	b.click("#submit button")
	b.waitText("h1", "finished")
	if after := p.pid(); after == 0 || after == before {
		t.Errorf("pid %d after the restart, was %d", after, before)
	}

	waiting := []proc{procs.new("0:127.0.0.1", "slow-1"), procs.new("0:127.0.0.1", "slow-2")}
	var operations []map[string]any
	for _, w := range waiting {
		operations = append(operations, map[string]any{"action": "start", "process": w.waiting(), "hosts": []string{w.host}})
	}
	id := u.c.submit(map[string]any{"operations": operations})
	other := newBrowser(t, u.c.url)
	other.open("tasks/" + id)
	b.open("tasks/" + id)
	b.fill("#pause input[name=reason]", "look first")
	b.click("#pause button")
	b.waitText("#hold", "look first")
	other.waitText("#hold", "look first")

	stale := eval[string](other, "document.querySelector('#resume input[name=if_seq]').value")
	b.click("#resume button")
	b.waitFor("!document.getElementById('hold') && document.getElementById('interrupt')")
	other.waitFor("!document.getElementById('hold')")
	status, answer := u.press("tasks/"+id+"/cancel", url.Values{"if_seq": {stale}, "mode": {"drain"}})
	if status != http.StatusConflict || !strings.Contains(answer, "nothing was done") {
		t.Errorf("a button of an outdated page: %d %s", status, answer)
	}
	b.click("#interrupt button")
	other.waitText("#cancel", "canceled")
	other.waitText("h1", "finished")
	for _, w := range waiting {
		if w.starts() > 0 {
			t.Errorf("%s was started", w.name)
		}
	}
}

// press sends the form of a button without a browser, and returns the page that follows.
func (u *up) press(path string, form url.Values) (status int, text string) {
	u.t.Helper()
	r, err := http.PostForm(u.c.url+"/ui/"+path, form)
	if err != nil {
		u.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// hostile is text that breaks pages which do not escape it: markup, script, the end of an attribute,
// characters that change the direction, and control characters.
const hostile = "</script><script>window.hacked=1</script>\"'><img src=x onerror=window.hacked=1>\u202egnp.exe\u0007\u001b[31m{{.}}"

// TestHostileTextsDoNothingInTheConsole puts markup into each text that a caller or a process chooses.
func TestHostileTextsDoNothingInTheConsole(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	p := procs.new("0:127.0.0.1", "evil")
	spec := p.spec()
	file := filepath.Join(p.dir, "text")
	if err := os.WriteFile(file, []byte(hostile+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	control := spec["control"].(map[string]any)
	control["start"] = "cat text; " + control["start"].(string)
	control["version"] = "cat text"
	control["reload"] = "cat text >&2; exit 3"
	spec["labels"] = map[string]any{"note": hostile}
	spec["contact"] = hostile
	status, answer, _ := u.c.call(http.MethodPut, "/v1/registrations", "", map[string]any{"process": spec, "hosts": []string{p.host}})
	if status != http.StatusOK {
		t.Fatalf("register: %d %s", status, answer)
	}
	act := func(action string) string {
		return u.c.submit(map[string]any{"action": action, "process": spec, "hosts": []string{p.host}, "business": "2"})
	}
	u.c.wait(act("start"))
	failed := act("reload")
	if end := u.c.wait(failed); end.Counts["failed"] != 1 {
		t.Fatalf("the reload: %v", end.Counts)
	}
	status, answer, _ = u.c.call(http.MethodPut, "/v1/freezes", "", map[string]any{"hosts": []string{p.host}, "ttl": "1h", "reason": hostile})
	if status != http.StatusOK {
		t.Fatalf("freeze: %d %s", status, answer)
	}

	b := newBrowser(t, u.c.url)
	pages := append(slices.Clone(consolePages), "tasks/"+failed, "hosts/"+p.host, "hosts/"+p.host+"/processes/e2e:evil",
		"search?q="+url.QueryEscape(hostile), "tasks?process="+url.QueryEscape(hostile), "processes?name="+url.QueryEscape(hostile),
		"hosts?labels="+url.QueryEscape(hostile), "events?kind="+url.QueryEscape(hostile), "rules?namespace="+url.QueryEscape(hostile),
		"operate?plan=1&name="+url.QueryEscape(hostile)+"&hosts="+url.QueryEscape(hostile), "hosts/"+url.PathEscape(hostile),
		"hosts/"+p.host+"/processes/"+url.PathEscape(hostile), "tasks/"+url.PathEscape(hostile), "signin?next="+url.QueryEscape("//evil.example/"))
	for _, path := range pages {
		b.open(path)
		if eval[bool](b, "'hacked' in window || document.querySelector('img') !== null") {
			t.Errorf("%s: a text became markup", path)
		}
		if strings.ContainsAny(eval[string](b, "document.body.innerText"), "\u202e\a\x1b") {
			t.Errorf("%s shows characters that change the text around them", path)
		}
		if unsafe := eval[string](b, `[...document.querySelectorAll("a[href],form[action]")].map(e => new URL(e.getAttribute("href") ?? e.getAttribute("action"), location).href).find(a => !a.startsWith(location.origin)) ?? ""`); unsafe != "" {
			t.Errorf("%s leads to %s", path, unsafe)
		}
	}
	b.open("hosts/" + p.host + "/processes/e2e:evil")
	b.waitText("#output", "window.hacked=1")
}

// TestARolloutIsApprovedRetriedAndUndoneInTheConsole presses the buttons of a rollout on simulated hosts,
// of which one has no agent.
func TestARolloutIsApprovedRetriedAndUndoneInTheConsole(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 0)
	_, c := f.dispatcher("")
	worker := f.worker("")
	f.simulate(9, "1ms")
	f.waitListed(c, 9)
	b := newBrowser(t, c.url)
	worker.Kill()
	c.submit(map[string]any{"action": "status", "process": simulatedSpec(), "hosts": simulatedHosts(1)})
	b.open("")
	b.waitText(".concerns", "check that workers run")
	f.worker("")
	b.waitFor("!document.querySelector('.concerns').innerText.includes('check that workers run')")

	id := c.submit(map[string]any{
		"action": "start", "process": simulatedSpec(), "hosts": simulatedHosts(10), // the tenth has no agent
		"rollout": map[string]any{"ramp": []any{4}, "stage": map[string]any{"gates": []string{"manual"}}},
	})
	b.open("tasks/" + id)
	b.waitText("#rollouthold", "waits for your approval")
	b.waitText("#approve p", "begins with 6 hosts")
	b.click("#approve button")
	b.waitText("h1", "finished")
	b.waitText("#failures", "0:10.0.0.9")

	b.waitText("#retry p", "repeats 1 ")
	newer := c.submit(map[string]any{"action": "start", "process": simulatedSpec(), "hosts": simulatedHosts(10)[9:]})
	b.click("#retry button")
	b.waitText("#plan", newer)
	b.click("#submit button")
	b.waitFor(fmt.Sprintf("location.pathname.startsWith('/ui/tasks/') && !location.pathname.endsWith(%q)", id))
	b.waitText("main", "Retry of")

	b.open("tasks/" + id)
	b.waitText("#undo p", "10 released hosts")
	b.click("#undo button")
	b.waitText("main", "Undo of")
	b.waitText("h1", "finished")
}
