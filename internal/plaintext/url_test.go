package plaintext_test

import (
	"testing"

	"github.com/procfleet/procfleet/internal/plaintext"
)

func TestAURLIsShownWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://shop.example/done":                      "http://shop.example/done",
		"https://ops:secret@shop.example:8443/a%2Fb/":   "https://shop.example:8443/a%2Fb/",
		"https://token@shop.example":                    "https://shop.example",
		"http://shop.example/done?token=secret&x=1":     "http://shop.example/done",
		"http://shop.example?secret":                    "http://shop.example",
		"http://shop.example/?":                         "http://shop.example/",
		"http://shop.example/done#secret":               "http://shop.example/done",
		"http://ops:secret@[2001:db8::1]:80/x?y#z":      "http://[2001:db8::1]:80/x",
		"http:secret@shop.example":                      "",
		"http://ops:secret@shop.example:port/":          "",
		"http://shop.example/\x7f?secret":               "",
		"":                                              "",
		"secret":                                        "",
		"http://shop.example/%zz?secret":                "",
		"http://shop.example/done%3Ftoken=1?token=hide": "http://shop.example/done%3Ftoken=1",
	} {
		if got := plaintext.URL(text); got != want {
			t.Errorf("URL(%q) = %q, want %q", text, got, want)
		}
	}
}
