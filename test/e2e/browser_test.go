//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/procfleet/procfleet/internal/testenv"
)

// browser is a tab of Chromium that shows the console of a dispatcher.
type browser struct {
	t   *testing.T
	ctx context.Context
	url string
}

// newBrowser starts Chromium with a profile of its own.
func newBrowser(t *testing.T, url string, more ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		testenv.Missing(t, "chromium", "chromium is not installed: run `make test/setup`")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // root cannot use the sandbox
		chromedp.Env("HOME="+t.TempDir()), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(startTimeout))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(options, more...)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx, url: url}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // the browser lives as long as this context
		t.Fatalf("start Chromium: %v", err)
	}
	b.failOnScriptErrors()
	return b
}

// failOnScriptErrors reports uncaught errors of scripts, and what the content policy has blocked.
func (b *browser) failOnScriptErrors() {
	messages := chromedp.Console(b.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleException || strings.Contains(m.Text, "Content Security Policy") {
				b.t.Errorf("script failed: %s", m.Text)
			}
		}
	}()
	b.t.Cleanup(func() {
		_ = chromedp.Cancel(b.ctx) // waits for the process, so that its profile can be removed
		<-done
	})
}

// do runs actions and fails the test if they do not end.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, startTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v\npage:\n%s", err, b.source())
	}
}

// source returns the text of the page for messages.
func (b *browser) source() (text string) {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, _ = chromedp.Run(ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText"))
	return text
}

// open shows a page of the console, "" the first one.
func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.url+"/ui/"+path), chromedp.WaitReady(chromedp.CSS("#main")))
}

// eval returns the result of a script.
func eval[T any](b *browser, script string) (result T) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, startTimeout)
	defer cancel()
	result, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		b.t.Fatalf("%s: %v\npage:\n%s", script, err, b.source())
	}
	return result
}

// text returns the text of an element, "" without one.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(eval[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector)))
}

// waitText waits until the text of an element contains want.
func (b *browser) waitText(selector, want string) {
	b.t.Helper()
	b.waitFor(fmt.Sprintf("(document.querySelector(%q)?.innerText ?? '').includes(%q)", selector, want))
}

// waitFor waits until a condition of the page is true, also while another page is loaded.
func (b *browser) waitFor(condition string) {
	b.t.Helper()
	b.poll(condition, 50*time.Millisecond)
}

// poll is waitFor with an interval between the readings of the page.
func (b *browser) poll(condition string, every time.Duration) {
	b.t.Helper()
	met := func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, startTimeout)
		defer cancel()
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")")) // an error: the page is being replaced
		return err == nil && is
	}
	for deadline := time.Now().Add(finishTimeout); !met(); time.Sleep(every) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within %s: %s\npage:\n%s", finishTimeout, condition, b.source())
		}
	}
}

// click waits for an element and clicks it by script: a mouse would miss an element that moves because
// the page changes.
func (b *browser) click(selector string) {
	b.t.Helper()
	b.waitFor(fmt.Sprintf("document.querySelector(%q)", selector))
	eval[bool](b, fmt.Sprintf("document.querySelector(%q).click(), true", selector))
}

// fill waits for a field and sets its value.
func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.waitFor(fmt.Sprintf("document.querySelector(%q)", selector))
	eval[bool](b, fmt.Sprintf("document.querySelector(%q).value = %q, true", selector, text))
}

// screen sets the size of the window, and the color scheme "light" or "dark".
func (b *browser) screen(width, height int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

// language sets the language that the browser requests.
func (b *browser) language(tag string) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Accept-Language": tag}})
		return err
	}))
}
