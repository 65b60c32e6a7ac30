// Package dialecttest reads and writes the fixtures of dialects: requests, what a dialect decodes
// from them, and its responses.
//
// The file testdata/<dialect>/<call>.txtar contains all cases of one call, and no_call.txtar the
// requests that reach no call. A section is a file of a case, or of all cases without such a file:
//
//	-- pause_task/request.http --
//	# An optional comment: why the case exists.
//	POST /v1/tasks/7/pause HTTP/1.1
//	Content-Type: application/json
//
//	{"reason": "the body, without the last newline of the section"}
//	-- pause_task/tasks.json --
//	-- pause_task/decoded.json --
//	-- pause_task/response.http --
package dialecttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/tools/txtar"
)

// The sections that every case has. A rejected request has no Decoded.
const (
	request  = "request.http"
	Decoded  = "decoded.json"
	Response = "response.http"
)

// File contains the cases of a call.
type File struct {
	Call  string // the name of the file
	Cases []*Case

	path    string
	archive *txtar.Archive
}

// Case is a request and the expected results.
type Case struct {
	Name    string
	Request *http.Request // without its body
	Body    []byte

	file *File
}

// Read returns the files of a folder.
func Read(t *testing.T, folder string) []*File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures in %s: %v", folder, err)
	}
	files := make([]*File, len(paths))
	for i, path := range paths {
		if files[i], err = readFile(path); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return files
}

func readFile(path string) (*File, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return nil, err
	}
	f := &File{Call: strings.TrimSuffix(filepath.Base(path), ".txtar"), path: path, archive: archive}
	for i, section := range archive.Files {
		if f.index(section.Name) != i {
			return nil, fmt.Errorf("two sections are named %s", section.Name)
		}
		name, file, ofCase := strings.Cut(section.Name, "/")
		if file == request {
			c := &Case{Name: name, file: f}
			if c.Request, c.Body, err = parseRequest(section.Data); err != nil {
				return nil, fmt.Errorf("%s: %w", section.Name, err)
			}
			f.Cases = append(f.Cases, c)
		} else if ofCase && f.index(name+"/"+request) < 0 {
			return nil, fmt.Errorf("%s has no %s", section.Name, request)
		}
	}
	return f, nil
}

func parseRequest(text []byte) (*http.Request, []byte, error) {
	for bytes.HasPrefix(text, []byte("#")) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	// The added newline ends the header of a request without a body.
	rest := bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\n")))
	r, err := http.ReadRequest(rest)
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(rest)
	return r, bytes.TrimSuffix(body, []byte("\n\n")), err
}

func (f *File) index(section string) int {
	return slices.IndexFunc(f.archive.Files, func(s txtar.File) bool { return s.Name == section })
}

// Section returns a section of the case, or the section of all cases. It is nil if neither exists.
func (c *Case) Section(name string) []byte {
	for _, name := range []string{c.Name + "/" + name, name} {
		if i := c.file.index(name); i >= 0 {
			return c.file.archive.Files[i].Data
		}
	}
	return nil
}

// Unmarshal decodes a section, which must exist.
func (c *Case) Unmarshal(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(c.Section(name), into); err != nil {
		t.Fatalf("%s: %s/%s: %v", c.file.path, c.Name, name, err)
	}
}

// Expect replaces the expected results. Without a decoded request, the case has no such section.
func (c *Case) Expect(decoded, response []byte) {
	files := slices.DeleteFunc(c.file.archive.Files, func(s txtar.File) bool {
		return s.Name == c.Name+"/"+Decoded || s.Name == c.Name+"/"+Response
	})
	end := 0
	for i, s := range files {
		if strings.HasPrefix(s.Name, c.Name+"/") {
			end = i + 1
		}
	}
	files = slices.Insert(files, end, txtar.File{Name: c.Name + "/" + Response, Data: response})
	if decoded != nil {
		files = slices.Insert(files, end, txtar.File{Name: c.Name + "/" + Decoded, Data: decoded})
	}
	c.file.archive.Files = files
}

// Write replaces the file on disk.
func (f *File) Write() error { return os.WriteFile(f.path, txtar.Format(f.archive), 0o600) }

// width is the number of columns of a line that contains more than one value.
const width = 100

// AppendJSON appends a JSON value in a form for readers, and a newline: a line contains a whole
// object or array, or several elements, if they fit there.
func AppendJSON(dst []byte, value jsontext.Value) ([]byte, error) {
	dst, err := appendJSON(dst, value, "\n")
	return append(dst, '\n'), err
}

func appendJSON(dst []byte, value jsontext.Value, newline string) ([]byte, error) {
	line, err := jsontext.AppendFormat(nil, value,
		jsontext.PreserveRawStrings(true), jsontext.SpaceAfterColon(true), jsontext.SpaceAfterComma(true))
	if err != nil || !nests(value) || fits(dst, line) {
		return append(dst, line...), err
	}
	members := jsontext.NewDecoder(bytes.NewReader(value))
	open, err := members.ReadToken()
	if err != nil {
		return nil, err
	}
	dst = append(dst, open.String()...)
	closing := open.Kind() + 2 // '}' of '{', ']' of '['
	for before := jsontext.Value(nil); members.PeekKind() != closing; {
		member, err := members.ReadValue()
		if err != nil {
			return nil, err
		}
		member = slices.Clone(member)
		if before != nil {
			dst = append(dst, ',')
		}
		if closing == ']' && before != nil && !nests(before) && !nests(member) && fits(dst, member) {
			dst = append(dst, ' ')
		} else {
			dst = append(dst, newline+"  "...)
		}
		before = member
		if closing == '}' {
			dst = append(append(dst, member...), ": "...)
			if member, err = members.ReadValue(); err != nil {
				return nil, err
			}
		}
		if dst, err = appendJSON(dst, member, newline+"  "); err != nil {
			return nil, err
		}
	}
	return append(dst, newline+string(rune(closing))...), nil
}

// nests reports whether the value is an object or an array.
func nests(value jsontext.Value) bool { return value.Kind() == '{' || value.Kind() == '[' }

// fits reports whether the last line has room for a text.
func fits(dst, text []byte) bool {
	return len(dst)-bytes.LastIndexByte(dst, '\n')+len(text) <= width
}
