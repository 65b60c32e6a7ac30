package plaintext_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/internal/plaintext"
)

func TestNothingSteersHoweverItIsCutIntoWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text") + "\n"
		var out bytes.Buffer
		w := plaintext.NewWriter(&out)
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			if written, err := w.Write([]byte(rest[:n])); err != nil || written != n {
				t.Fatalf("wrote %d of %d: %v", written, n, err)
			}
			rest = rest[n:]
		}
		bad := func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
		}
		if strings.ContainsFunc(out.String(), bad) {
			t.Errorf("%q became %q", text, out.String())
		}
		if !strings.ContainsFunc(text, bad) && !strings.ContainsAny(text, "\u2028\u2029") && out.String() != strings.ToValidUTF8(text, "\ufffd") && validOnly(text) {
			t.Errorf("%q was changed to %q", text, out.String())
		}
		if line := plaintext.Line(text); strings.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("%q is no line: %q", text, line)
		}
	})
}

func validOnly(text string) bool { return strings.ToValidUTF8(text, "") == text }

func TestJSONMeansTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text") + "\u009b2J\u007f\u202e"
		document, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		safe := plaintext.JSON(document)
		var back string
		if err := json.Unmarshal(safe, &back); err != nil || back != text {
			t.Errorf("%q came back as %q: %v", text, back, err)
		}
		if bytes.ContainsAny(safe, "\u009b\u007f\u202e") {
			t.Errorf("%q", safe)
		}
	})
}

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
