//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// lowContrast lists texts whose contrast with their background is below 4.5, the minimum of WCAG 2.2,
// level AA.
const lowContrast = `(() => {
  const parse = (c) => { const n = c.match(/[\d.]+/g).map(Number); return { rgb: n.slice(0, 3), a: n[3] ?? 1 }; };
  const light = ([r, g, b]) => [r, g, b].map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; })
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a === 1) return c.rgb; }
    return [255, 255, 255];
  };
  const low = [];
  const check = (e, color, what) => {
    const [a, b] = [light(parse(color).rgb), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(what + " " + e.className + " " + ratio.toFixed(2));
  };
  for (const e of document.querySelectorAll("body *")) {
    if (!e.checkVisibility() || e.closest("svg, option")) continue;
    if ([...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) check(e, getComputedStyle(e).color, e.nodeName + " " + e.textContent.trim().slice(0, 30));
    if (e.placeholder) check(e, getComputedStyle(e, "::placeholder").color, "placeholder " + e.placeholder);
  }
  return [...new Set(low)].join("\n");
})()`

// controlRoles are the roles of elements that a person operates or must be able to name.
var controlRoles = []string{"button", "link", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "image", "DisclosureTriangle"}

// unnamed returns the controls and pictures of a page that have no name in the accessibility tree.
func (b *browser) unnamed() (roles []string) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		tree, err := cdp.Call(ctx, t, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		if err != nil {
			return err
		}
		for _, n := range tree.Nodes {
			role := axText(n.Role)
			if !n.Ignored && slices.Contains(controlRoles, role) && strings.TrimSpace(axText(n.Name)) == "" {
				roles = append(roles, fmt.Sprintf("%s (node %d)", role, n.BackendDOMNodeID))
			}
		}
		return nil
	}))
	return roles
}

func axText(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text) // other values are no texts
	}
	return text
}

// TestTheConsoleIsAccessible reads each page as a screen reader does, on a narrow screen in both languages,
// and in both color schemes.
func TestTheConsoleIsAccessible(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	p := procs.new("0:127.0.0.1", "web")
	u.c.register(p)
	u.c.wait(u.c.submit(operation("start", []proc{p})))
	failing := p.spec()
	failing["control"].(map[string]any)["reload"] = "echo no such file >&2; exit 3"
	failed := u.c.submit(map[string]any{
		"action": "reload", "process": failing, "hosts": []string{p.host}, "rollout": map[string]any{"max_concurrency": "50%"},
	})
	u.c.wait(failed)

	b := newBrowser(t, u.c.url, chromedp.Env("TZ=Asia/Shanghai"))
	b.open("tasks/" + failed)
	b.showsTimesOf(t, time.FixedZone("", 8*3600))
	pages := append(slices.Clone(consolePages), "signin", "tasks/"+failed, "hosts/"+p.host, "hosts/"+p.host+"/processes/e2e:web",
		"operate?action=restart&namespace=e2e&name=web&plan=1", "tasks/none")
	for _, language := range []string{"en", "zh-CN"} {
		b.language(language)
		for _, path := range pages {
			b.screen(360, 780, "light")
			b.open(path)
			if lang := eval[string](b, "document.documentElement.lang"); lang != language {
				t.Fatalf("/ui/%s is in %q, want %q", path, lang, language)
			}
			if width := eval[int](b, "document.documentElement.scrollWidth"); width > 360 {
				t.Errorf("/ui/%s (%s) is %d pixels wide on a screen of 360", path, language, width)
			}
			if roles := b.unnamed(); len(roles) > 0 {
				t.Errorf("/ui/%s (%s): controls without a name: %v", path, language, roles)
			}
			if twice := eval[string](b, `[...document.querySelectorAll("[id]")].map(e => e.id).filter((id, i, all) => all.indexOf(id) !== i).join()`); twice != "" {
				t.Errorf("/ui/%s: ids that occur twice: %s", path, twice)
			}
			if language != "en" { // colors do not depend on the language
				continue
			}
			for _, scheme := range []string{"light", "dark"} {
				b.screen(1280, 900, scheme)
				if low := eval[string](b, lowContrast); low != "" {
					t.Errorf("/ui/%s (%s, %s): low contrast:\n%s", path, language, scheme, low)
				}
			}
		}
	}
}

// showsTimesOf verifies that the times of the page are in the zone of the browser, with UTC beside them.
func (b *browser) showsTimesOf(t *testing.T, zone *time.Location) {
	t.Helper()
	times := eval[[]string](b, `[...document.querySelectorAll("#main time")].map(e => e.dateTime + "=" + e.textContent)`)
	if len(times) == 0 {
		t.Fatal("the page shows no time")
	}
	for _, shown := range times {
		at, text, _ := strings.Cut(shown, "=")
		utc, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if want := utc.In(zone).Format("2006-01-02 15:04:05") + utc.Format(" · 15:04:05 UTC"); text != want {
			t.Errorf("the time %s is shown as %q, want %q", at, text, want)
		}
	}
}

// TestTheConsoleWorksWithKeysAlone finds a task, pauses it and reads its host without a mouse.
func TestTheConsoleWorksWithKeysAlone(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	u.start()
	procs := newProcs(t)
	p := procs.new("0:127.0.0.1", "keys")
	id := u.c.submit(map[string]any{"action": "start", "process": p.waiting(), "hosts": []string{p.host}})
	b := newBrowser(t, u.c.url)
	press := func(keys string) { t.Helper(); b.do(chromedp.KeyEvent(keys)) }

	b.open("")
	press("g")
	press("h")
	b.waitFor("location.pathname === '/ui/hosts'")
	find := func(text string) {
		t.Helper()
		b.waitFor("document.readyState === 'complete'") // the scripts of the page have run
		press("/")
		b.waitFor("document.activeElement.id === 'search'")
		press(kb.Backspace) // the protocol types the slash even though the page has handled its key
		press(text)
		press(kb.Enter)
	}
	find(id)
	b.waitText("h1", id)

	unreached := `[...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")].filter(e => e.checkVisibility() && !e.dataset.reached).length`
	for range 200 {
		press(kb.Tab)
		if eval[int](b, "document.activeElement.dataset.reached = 1, "+unreached) == 0 {
			break
		}
	}
	if n := eval[int](b, unreached); n > 0 {
		t.Errorf("Tab does not reach %d controls", n)
	}
	for range 200 {
		if eval[bool](b, "document.activeElement.matches('#pause button')") {
			break
		}
		press(kb.Tab)
	}
	press(kb.Enter)
	b.waitText("#hold", "paused")

	find(p.host)
	b.waitText("h1", p.host)
	u.c.cancel(id, "interrupt") // ends the start command, which waits
	u.c.wait(id)
}
