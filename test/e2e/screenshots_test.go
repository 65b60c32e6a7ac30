//go:build linux && screenshots

package e2e

import (
	"flag"
	"path/filepath"
	"testing"
)

var pictures = flag.String("pictures", "", "folder into which the pictures of the documentation are written")

// TestScreenshots writes the pictures of the documentation.
func TestScreenshots(t *testing.T) {
	u := newUp(t, "--demo")
	u.start()
	b := newBrowser(t, u.c.url)
	for name, path := range map[string]string{"overview": "", "tasks": "tasks", "host": "hosts/0:127.0.0.1", "process": "hosts/0:127.0.0.1/processes/demo:sample", "operate": "operate?action=restart&namespace=demo&name=sample&plan=1"} {
		b.screen(1280, 900, "light")
		b.open(path)
		b.shoot(filepath.Join(*pictures, name+".png"))
	}
}
