package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// licences are the permitted licences of dependencies, each with a sentence that identifies its text.
// The order counts: BSD-3-Clause contains the text of BSD-2-Clause.
var licences = []struct{ id, says string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"BSD-3-Clause", "may be used to endorse or promote products derived from this software without"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce the above copyright notice"},
}

// refused matches words that no licence of a dependency may contain. The Mozilla licence is exempt: it
// names the GNU licences as alternatives.
var refused = regexp.MustCompile(`(?i)GNU (Affero |Lesser |Library )?General Public License|Business Source License|Server Side Public License|Commons Clause|Elastic License`)

// licencesIn recognises the licences in the text of a file.
func licencesIn(text string) (ids []string, err error) {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "#", " ")), " ")
	for _, l := range licences {
		if !strings.Contains(text, l.says) || l.id == "BSD-2-Clause" && slices.Contains(ids, "BSD-3-Clause") {
			continue
		}
		ids = append(ids, l.id)
	}
	if word := refused.FindString(text); word != "" && !slices.Contains(ids, "MPL-2.0") {
		return nil, errors.New("it names the " + word)
	}
	if len(ids) == 0 {
		return nil, errors.New("it is of no known kind")
	}
	return ids, nil
}

type listedModule struct {
	Path, Dir string
	Main      bool
}

// compiledIn lists the modules of which something is compiled into a program
// on any system that it is built for, or into a test on Linux.
func compiledIn(t *testing.T) map[string]listedModule {
	t.Helper()
	modules := map[string]listedModule{}
	for goos, what := range map[string][]string{"linux": {"-test", "./..."}, "darwin": {"./cmd/..."}, "windows": {"./cmd/..."}} {
		cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, what...)...)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, stderr.String())
		}
		for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct{ Module *listedModule }
			err := decoder.Decode(&p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Module != nil && !p.Module.Main {
				modules[p.Module.Path] = *p.Module
			}
		}
	}
	return modules
}

// licencesOf reads the licence files in the root of a module.
func licencesOf(m listedModule) ([]string, error) {
	files, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, err
	}
	isLicence := regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-.].*)?$`)
	var ids []string
	for _, file := range files {
		if file.IsDir() || !isLicence.MatchString(file.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.Dir, file.Name()))
		if err != nil {
			return nil, err
		}
		found, err := licencesIn(string(text))
		if err != nil {
			return nil, errors.New(file.Name() + ": " + err.Error())
		}
		ids = append(ids, found...)
	}
	if len(ids) == 0 {
		return nil, errors.New("there is no file of a licence")
	}
	return ids, nil
}

func TestLicencesThatMustNotBeAreSeen(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007",
		"GNU AFFERO GENERAL PUBLIC\n   LICENSE",
		"Business Source License 1.1",
		"Permission is hereby granted, free of charge, to any person obtaining a copy\n\"Commons Clause\" License Condition v1.0",
		"All rights reserved.",
		"",
	} {
		if ids, err := licencesIn(text); err == nil {
			t.Errorf("%q is taken for %v", text, ids)
		}
	}
}

func TestEveryDependencyHasALicenceThatIsAllowed(t *testing.T) {
	t.Parallel()
	modules := compiledIn(t)
	if len(modules) < 10 {
		t.Fatalf("only %d dependencies were found", len(modules))
	}
	documented := documentedDependencies(t)
	direct := directDependencies(t)
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		ids, err := licencesOf(modules[path])
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		row, named := documented[path]
		switch {
		case !direct[path]:
		case !named:
			t.Errorf("docs/dependencies.md does not say why %s (%s) is here", path, strings.Join(ids, ", "))
		default:
			for _, id := range ids {
				if !strings.Contains(row.licence, id) {
					t.Errorf("docs/dependencies.md has %s under %s, its files say %s", path, row.licence, id)
				}
			}
			if len(row.why) < 10 {
				t.Errorf("docs/dependencies.md does not say why %s is here", path)
			}
		}
	}
	for path := range documented {
		if !direct[path] {
			t.Errorf("docs/dependencies.md has %s, which go.mod does not require", path)
		}
	}
}

type documentedRow struct{ licence, why string }

// documentedDependencies reads the table of docs/dependencies.md.
func documentedDependencies(t *testing.T) map[string]documentedRow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]documentedRow{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(line, "| Module") || strings.HasPrefix(line, "| ---") {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			name = strings.TrimSpace(name)
			if host, _, _ := strings.Cut(name, "/"); !strings.Contains(host, ".") {
				name = "github.com/" + name
			}
			rows[name] = documentedRow{licence: cells[2], why: strings.TrimSpace(cells[3])}
		}
	}
	return rows
}

func directDependencies(t *testing.T) map[string]bool {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for _, r := range file.Require {
		direct[r.Path] = !r.Indirect
	}
	return direct
}
