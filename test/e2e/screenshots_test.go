//go:build linux && screenshots

package e2e

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

var pictures = flag.String("pictures", "", "folder into which the pictures of the documentation are written")

// TestScreenshots writes the pictures of the documentation, which show the demo.
func TestScreenshots(t *testing.T) {
	if err := os.MkdirAll(*pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	u := newUp(t, "--demo=1s")
	u.start()
	b := newBrowser(t, u.c.url)
	shoot := func(name, path string, height int64, scheme string) {
		t.Helper()
		b.screen(1120, height, scheme)
		b.open(path)
		b.waitFor("!document.querySelector('#main .soft')?.innerText.startsWith('Counting')")
		b.shoot(filepath.Join(*pictures, name+".png"))
	}
	u.child.WaitOutput(t, finishTimeout, "held after 1 of 31")
	broken := regexp.MustCompile(`(?s)does not start.*?/ui/tasks/(GSETASK:[0-9:]+)`).FindStringSubmatch(u.child.Output())
	shoot("rollout", "tasks/"+broken[1], 900, "light")
	u.child.WaitOutput(t, finishTimeout, "The demo is over")
	shoot("overview", "", 760, "light")
	u.child.Signal(syscall.SIGINT) // removes the services of the demo
	u.child.Wait(t, startTimeout)
}

// shoot writes a picture of the window.
func (b *browser) shoot(file string) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		picture, err := cdp.Call(ctx, t, page.CaptureScreenshot, page.CaptureScreenshotParams{})
		if err == nil {
			err = os.WriteFile(file, picture.Data, 0o644)
		}
		return err
	}))
}
