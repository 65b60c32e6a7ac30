package dialect

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// maxCells is the maximum number of cells of a CSV table. Callers may add columns of
// their own.
const maxCells = 10 * catalog.MaxPlacements

// readCSV reads a topology as CSV, with a line for each host of a module. The first line
// names the columns in any order: set, module, host and optionally default. Other
// columns are ignored. The line of a module without hosts has an empty host; the line of
// a set without modules has an empty module as well.
func (q *TopologyChange) readCSV(r *Request) error {
	if !utf8.Valid(r.Body) {
		return &Error{Kind: InvalidField, Field: "body", Problem: "is not valid UTF-8"}
	}
	if bytes.Count(r.Body, []byte(",")) > maxCells {
		return &Error{Kind: TooLarge, Field: "body", Problem: "has more cells than a topology can have"}
	}
	lines := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(r.Body, []byte("\ufeff")))) // spreadsheets begin a file with this mark
	lines.ReuseRecord = true
	head, err := lines.Read()
	if err != nil {
		return notCSV(err)
	}
	t := &tabled{sets: []catalog.Set{}, indexes: make(map[string]int), modules: make(map[[2]string]*tabledModule)}
	if err := t.header(head); err != nil {
		return err
	}
	for {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			q.Sets = t.sets
			return nil
		}
		if err != nil {
			return notCSV(err)
		}
		if err := t.line(line); err != nil {
			number, _ := lines.FieldPos(0)
			err.Field = fmt.Sprintf("line %d, %s", number, err.Field)
			return err
		}
	}
}

func notCSV(err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("there is no line")
	}
	return &Error{Kind: Malformed, Field: "body", Problem: "is not CSV: " + err.Error()}
}

// tabled is a topology while it is read line by line.
type tabled struct {
	columns struct{ set, module, host, fallback int } // indexes; -1 is no such column
	sets    []catalog.Set
	indexes map[string]int // of sets, by name
	modules map[[2]string]*tabledModule
	hosts   int // number of hosts in all modules
}

type tabledModule struct {
	set, index int  // of the module in the topology
	said       bool // a line has set Default
	hosts      map[procfleet.Host]bool
}

func (t *tabled) header(names []string) error {
	column := func(name string) int {
		return slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(strings.TrimSpace(n), name) })
	}
	c := &t.columns
	c.set, c.module, c.host, c.fallback = column("set"), column("module"), column("host"), column("default")
	if c.set < 0 || c.module < 0 || c.host < 0 {
		return invalid("line 1", "does not name the columns: set,module,host or set,module,host,default")
	}
	return nil
}

// line adds one line. The field of an error is the column.
func (t *tabled) line(cells []string) *Error {
	cell := func(n int) string { return strings.Clone(strings.TrimSpace(cells[n])) }
	set, module, host := cell(t.columns.set), cell(t.columns.module), cell(t.columns.host)
	switch {
	case set == "":
		return invalid("set", "is empty")
	case module == "" && host != "":
		return invalid("module", "is empty, and there is a host")
	}
	m, err := t.module(set, module)
	if m == nil {
		return err
	}
	into := &t.sets[m.set].Modules[m.index]
	if t.columns.fallback >= 0 {
		if err := m.fallback(into, cell(t.columns.fallback)); err != nil {
			return err
		}
	}
	if host != "" {
		if t.hosts++; t.hosts > catalog.MaxPlacements {
			return invalid("host", "is one more than the %d that are allowed", catalog.MaxPlacements)
		}
		return m.host(into, host)
	}
	return nil
}

// module returns the module with these names, and creates it if it does not exist. It
// returns nil for an empty module name, which creates only the set.
func (t *tabled) module(set, module string) (*tabledModule, *Error) {
	n, known := t.indexes[set]
	if !known {
		if n = len(t.sets); n == catalog.MaxSets {
			return nil, invalid("set", "is one more than the %d that are allowed", n)
		}
		t.indexes[set] = n
		t.sets = append(t.sets, catalog.Set{Name: set, Modules: []catalog.Module{}})
	}
	if module == "" {
		return nil, nil
	}
	m := t.modules[[2]string{set, module}]
	if m == nil {
		if len(t.modules) == catalog.MaxModules {
			return nil, invalid("module", "is one more than the %d that are allowed", catalog.MaxModules)
		}
		m = &tabledModule{set: n, index: len(t.sets[n].Modules), hosts: make(map[procfleet.Host]bool)}
		t.modules[[2]string{set, module}] = m
		t.sets[n].Modules = append(t.sets[n].Modules, catalog.Module{Name: module})
	}
	return m, nil
}

// fallback sets Default of a module. Any line of the module may have it, with the same
// value.
func (m *tabledModule) fallback(into *catalog.Module, text string) *Error {
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return invalid("default", "is not a whole number")
	}
	if m.said && n != into.Default {
		return invalid("default", "is %d, and %d in another line of the module", n, into.Default)
	}
	into.Default, m.said = n, true
	return nil
}

func (m *tabledModule) host(into *catalog.Module, text string) *Error {
	host, err := procfleet.ParseHost(text)
	switch {
	case err != nil:
		return invalid("host", "%s", err.Error())
	case m.hosts[host]:
		return invalid("host", "%s is in the module already", host)
	}
	m.hosts[host] = true
	into.Hosts = append(into.Hosts, host)
	return nil
}

// maxYAMLMarks is the maximum number of marks in a YAML text that begin a node: a parser
// needs hundreds of bytes for each node. A host on a line of its own has two marks.
const maxYAMLMarks = 4 * catalog.MaxPlacements

func yamlToJSON(text []byte) ([]byte, error) {
	marks := 0
	for _, mark := range []string{"\n", ",", "[", "{", "- ", ": ", "? "} {
		marks += bytes.Count(text, []byte(mark))
	}
	if marks > maxYAMLMarks {
		return nil, &Error{Kind: TooLarge, Field: "body", Problem: "has more in it than a topology can have"}
	}
	if severalDocuments(text) {
		return nil, &Error{Kind: Malformed, Field: "body", Problem: "has several YAML documents; a topology is one"}
	}
	body, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, &Error{Kind: Malformed, Field: "body", Problem: "is not YAML: " + strings.ReplaceAll(err.Error(), "\n", "")}
	}
	return body, nil
}

// severalDocuments reports whether a YAML text has more than one document. The parser
// would ignore all but the first.
func severalDocuments(text []byte) bool {
	begun, ended := false, false
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		line = bytes.TrimRight(line, " \t\r\n")
		if rest, marks := bytes.CutPrefix(line, []byte("---")); marks && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			ended = ended || begun
			line = rest
		}
		line = bytes.TrimLeft(line, " \t")
		switch {
		case len(line) == 0, line[0] == '#', line[0] == '%' && !begun:
		case string(line) == "...":
			ended = ended || begun
		case ended:
			return true
		default:
			begun = true
		}
	}
	return false
}
