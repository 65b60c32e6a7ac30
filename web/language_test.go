package web

import (
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/client"
)

var (
	usedText = regexp.MustCompile(`(?:\bt|"none") "([a-z.]+[a-z])"`)
	usedBy   = regexp.MustCompile(`\bamount "([a-z.]+)"`)
	verb     = regexp.MustCompile(`%(?:\[\d+\])?s`)
)

// keysInTemplates returns the keys of texts that the templates and the Go files name.
func keysInTemplates(t *testing.T) map[string]bool {
	t.Helper()
	keys := make(map[string]bool)
	everything := overview{Waiting: 1, Held: make([]client.Task, 1), Survey: &survey{GaveUp: 1, Drifted: 1, Total: areaCount{Claimed: 1}}}
	for _, c := range everything.concerns() {
		keys[c.Text+".one"], keys[c.Text+".many"] = true, true
	}
	for _, p := range pages() {
		if p.nav != "" {
			keys["nav."+p.nav] = true
		}
	}
	err := fs.WalkDir(templates, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := templates.ReadFile(path)
		for _, m := range usedText.FindAllSubmatch(text, -1) {
			keys[string(m[1])] = true
		}
		for _, m := range usedBy.FindAllSubmatch(text, -1) {
			keys[string(m[1])+".one"], keys[string(m[1])+".many"] = true, true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// wordKinds are the kinds of words of the API, see [language.has], and the texts that Go code or a
// template composes.
var wordKinds = []string{"state", "hold", "holdtext", "canceltext", "phase", "desired", "drift", "event", "audited", "effect", "action", "command", "error", "signin", "nav"}

func TestAllLanguagesHaveTheTextsThatPagesUse(t *testing.T) {
	all, err := languages()
	if err != nil {
		t.Fatal(err)
	}
	used := keysInTemplates(t)
	first := all[0]
	for _, l := range all {
		if keys, want := slices.Sorted(maps.Keys(l.texts)), slices.Sorted(maps.Keys(first.texts)); !slices.Equal(keys, want) {
			t.Errorf("the keys of %s are not those of %s", l.Tag, first.Tag)
		}
		for key := range used {
			if l.texts[key] == "" {
				t.Errorf("%s has no text %q", l.Tag, key)
			}
		}
		for key, text := range l.texts {
			if got, want := len(verb.FindAllString(text, -1)), len(verb.FindAllString(first.texts[key], -1)); got != want || strings.Count(text, "%") != got {
				t.Errorf("%s: %q has %d arguments, %s has %d: %s", l.Tag, key, got, first.Tag, want, text)
			}
			kind, _, _ := strings.Cut(key, ".")
			if !used[key] && !slices.Contains(wordKinds, kind) {
				t.Errorf("%s: no page uses %q", l.Tag, key)
			}
		}
	}
}

func TestLanguageOfAViewer(t *testing.T) {
	all, err := languages()
	if err != nil {
		t.Fatal(err)
	}
	c := &Console{texts: all}
	for _, tt := range []struct{ cookie, header, want string }{
		{"", "", "en"},
		{"", "zh-CN,zh;q=0.9,en;q=0.8", "zh-CN"},
		{"", "zh-TW", "zh-CN"},
		{"", "de-DE, en-GB;q=0.7, zh;q=0.5", "en"},
		{"", "de", "en"},
		{"en", "zh-CN", "en"},
		{"zh-CN", "en", "zh-CN"},
		{"xx", "zh", "zh-CN"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/ui/", nil)
		r.Header.Set("Accept-Language", tt.header)
		if tt.cookie != "" {
			r.Header.Set("Cookie", languageCookie+"="+tt.cookie)
		}
		if got := c.languageOf(r).Tag; got != tt.want {
			t.Errorf("cookie %q, header %q: %s, want %s", tt.cookie, tt.header, got, tt.want)
		}
	}
}
