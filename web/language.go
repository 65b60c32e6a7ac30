package web

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// lang has one file of texts for each language, <tag>.json: the key of each text, and the text, with
// verbs of package fmt for its arguments. Every file has the same keys.
//
//go:embed lang
var lang embed.FS

// language has the texts of one language.
type language struct {
	Tag   string // of BCP 47
	Name  string // in the language itself
	texts map[string]string
}

// languages returns all languages; the first one is for viewers who prefer none of them.
func languages() ([]*language, error) {
	all := []*language{{Tag: "en", Name: "English"}, {Tag: "zh-CN", Name: "简体中文"}}
	for _, l := range all {
		file, err := lang.ReadFile("lang/" + l.Tag + ".json")
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(file, &l.texts); err != nil {
			return nil, fmt.Errorf("texts of %s: %w", l.Tag, err)
		}
	}
	return all, nil
}

// text returns a text with its arguments.
func (l *language) text(key string, args ...any) (string, error) {
	text, ok := l.texts[key]
	if !ok {
		return "", fmt.Errorf("language %s has no text %q", l.Tag, key)
	}
	if len(args) == 0 {
		return text, nil
	}
	for i, arg := range args {
		if n, is := arg.(int); is {
			args[i] = grouped(n)
		}
	}
	return fmt.Sprintf(text, args...), nil
}

// has returns the text of a word of the API, such as a state, or the word itself if the language has no
// text for it.
func (l *language) has(kind string, word any) string {
	if text, ok := l.texts[kind+"."+fmt.Sprint(word)]; ok {
		return text
	}
	return fmt.Sprint(word)
}

// amount returns the text for a number, whose key ends in ".one" for 1 and in ".many" for others.
func (l *language) amount(key string, n int) (string, error) {
	if n == 1 {
		return l.text(key+".one", n)
	}
	return l.text(key+".many", n)
}

// languageCookie has the language that a viewer has chosen.
const languageCookie = "__Host-language"

// languageOf returns the language that the viewer has chosen, or that the browser prefers.
func (c *Console) languageOf(r *http.Request) *language {
	if chosen, err := r.Cookie(languageCookie); err == nil {
		for _, l := range c.texts {
			if l.Tag == chosen.Value {
				return l
			}
		}
	}
	for preferred := range strings.SplitSeq(r.Header.Get("Accept-Language"), ",") {
		tag, _, _ := strings.Cut(strings.TrimSpace(preferred), ";") // browsers send them by preference
		for _, l := range c.texts {
			if base, _, _ := strings.Cut(l.Tag, "-"); strings.EqualFold(strings.Split(tag, "-")[0], base) {
				return l
			}
		}
	}
	return c.texts[0]
}

// setLanguage handles the choice of a language.
func (c *Console) setLanguage(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	setCookie(w, languageCookie, r.PostFormValue("language"), 365*24*time.Hour)
	http.Redirect(w, r, ownPath(r.PostFormValue("next")), http.StatusSeeOther)
}
