package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/plaintext"
)

//go:embed templates
var templates embed.FS

// rendered is the set of templates of a page in one language.
type rendered = template.Template

// embedded is what all consoles of a process show: the texts and the parsed pages.
type embedded struct {
	texts   []*language
	pages   []page
	failure *page // shows errors
}

// content parses the embedded files once in a process.
var content = sync.OnceValues(func() (*embedded, error) {
	texts, err := languages()
	if err != nil {
		return nil, err
	}
	e := &embedded{texts: texts, pages: pages(), failure: &page{name: "failure", still: true}}
	for i := range e.pages {
		if err := e.pages[i].parse(texts); err != nil {
			return nil, fmt.Errorf("page %s: %w", e.pages[i].name, err)
		}
	}
	if err := e.failure.parse(texts); err != nil {
		return nil, fmt.Errorf("page of errors: %w", err)
	}
	return e, nil
})

// parse parses the templates of a page in all languages.
func (p *page) parse(texts []*language) error {
	p.rendered = make(map[*language]*rendered, len(texts))
	for _, l := range texts {
		set, err := template.New(p.name).Funcs(functions(l)).Option("missingkey=error").
			ParseFS(templates, "templates/layout.html", "templates/parts.html", "templates/"+p.name+".html")
		if err != nil {
			return err
		}
		p.rendered[l] = set
	}
	return nil
}

// functions are the functions of templates.
func functions(l *language) template.FuncMap {
	return template.FuncMap{
		"t":       l.text,
		"has":     l.has,
		"n":       grouped,
		"amount":  l.amount,
		"utc":     func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05") },
		"rfc":     func(at time.Time) string { return at.UTC().Format(time.RFC3339) },
		"task":    func(id procfleet.TaskID) string { return Prefix + "tasks/" + url.PathEscape(string(id)) },
		"host":    func(h procfleet.Host) string { return Prefix + "hosts/" + url.PathEscape(h.String()) },
		"process": processPath,
		"bytes":   bytesText,
		"percent": func(part, of int) string {
			return strconv.FormatFloat(100*float64(part)/float64(max(of, 1)), 'f', 2, 64)
		},
		"line":    func(s string) string { return plaintext.Line(strings.TrimSpace(s)) }, // for names and messages, which contain whatever programs wrote
		"lines":   plaintext.Text,
		"actions": actions,
		"join":    strings.Join,
		"dict":    dict,
		"bar":     bar,
		"spark":   spark,
		"trip":    roundTripText,
		"lag":     lagText,
		"deref":   func(n *int) int { return *n },
		"states": func() []string {
			return []string{"up", "down", "running", "starting", "backoff", gaveUpPhase, "stopped"}
		},
		"audited": func() []string { return []string{"accepted", "change", "refused", "transition", "finished"} },
		"namespace": func(n string) string {
			return Prefix + "processes?" + url.Values{"namespace": {n}}.Encode()
		},
		"commands": commands,
	}
}

func processPath(h procfleet.Host, key string) string {
	return Prefix + "hosts/" + url.PathEscape(h.String()) + "/processes/" + url.PathEscape(key)
}

func actions(list []procfleet.Action) string {
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = string(a)
	}
	return strings.Join(names, ", ")
}

// dict returns a map, for templates that need more than one value.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("%v is no name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

// grouped formats a number with spaces between groups of three digits.
func grouped(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

func bytesText(n int64) string {
	value, unit := float64(n), 0
	for value >= 1024 && unit < 4 {
		value, unit = value/1024, unit+1
	}
	return strconv.FormatFloat(value, 'f', min(unit, 1), 64) + " " + [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
}

// column is a column of a small picture of numbers, in its units.
type column struct{ X, Y, Height int }

// spark returns the columns for numbers. The highest has 20 units.
func spark(counts []int) []column {
	most := max(1, slices.Max(counts))
	columns := make([]column, len(counts))
	for i, count := range counts {
		height := 0
		if count > 0 {
			height = max(2, 20*count/most)
		}
		columns[i] = column{8 * i, 20 - height, height}
	}
	return columns
}

// commands returns the control commands of a spec by the key of their name.
func commands(c procfleet.Control) [][2]string {
	all := [][2]string{
		{"start", c.Start},
		{"stop", c.Stop},
		{"restart", c.Restart},
		{"reload", c.Reload},
		{"kill", c.Kill},
		{"version", c.Version},
		{"health", c.Health},
	}
	kept := all[:0]
	for _, command := range all {
		if command[1] != "" {
			kept = append(kept, command)
		}
	}
	return kept
}

// fileVersion changes with the files in static. It is a part of their addresses, so that browsers load
// changed files.
var fileVersion = func() string {
	sum := sha256.New()
	_ = fs.WalkDir(static, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := static.ReadFile(path) // embedded
			sum.Write(text)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:6])
}()
