package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/client"
)

// exported returns the output of export.
func exported(t interface{ Fatal(...any) }, processes ...client.CatalogProcess) string {
	var out bytes.Buffer
	if err := writeCatalog(&out, processes); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// process returns a process with default values, except for the given attributes.
func process(set map[catalog.Attribute]catalog.Value, modules ...string) client.CatalogProcess {
	p := client.CatalogProcess{Attributes: make(map[string]any), Modules: append([]string{}, modules...)}
	for a, v := range catalog.WithDefaults(set) {
		p.Attributes[string(a)] = plain(v)
	}
	return p
}

func TestAnExportHasWhatDiffersFromTheDefaults(t *testing.T) {
	t.Parallel()
	got := exported(t,
		process(map[catalog.Attribute]catalog.Value{
			catalog.AttrName: catalog.Text("nginx"), catalog.AttrPort: catalog.Text("80"), catalog.AttrTimeout: catalog.Number(30), catalog.AttrAutoStart: catalog.Truth(true),
			catalog.AttrStart: catalog.Text("cd conf\n./start.sh --name \"a\" # 'b'\n"), catalog.AttrProtocol: {}, catalog.AttrDescription: catalog.Text("yes: \tx"),
		}, "web", "true"),
		process(map[catalog.Attribute]catalog.Value{
			catalog.AttrName: catalog.Text("42"), catalog.AttrPort: catalog.Number(6379), catalog.AttrFuncName: catalog.Text("redis"), catalog.AttrStop: catalog.Text(" a\n\tb"),
		}),
	)
	want := `name: nginx
description: "yes: \tx"
port: "80"
protocol: null
timeout: 30
start_cmd: |
  cd conf
  ./start.sh --name "a" # 'b'
auto_start: true
modules: [web, "true"]
---
name: "42"
port: 6379
func_name: redis
stop_cmd: " a\n\tb"
modules: []
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheExampleIsAnExport(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/examples/processes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	read, err := readCatalog(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), exported(t, read...)); diff != "" {
		t.Errorf("(-example +exported):\n%s", diff)
	}
}

// An exported process stays equal when it is imported, and is exported again as the same bytes.
func TestWhatIsExportedIsImportedAsItWas(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(
		rapid.String(),
		rapid.StringOfN(rapid.SampledFrom([]rune("ab: -#'\"\\\n\t\r{}[]&*!|>%@`?,1.0~\u0085\u2028\ufeff\x01é")), 0, 30, -1),
		rapid.SampledFrom([]string{"80", "1e3", "0x1f", "true", "no", "null", "~", "", " ", "2020-01-01", "---", "...", "- a", "a: b", "<<", "=", "\n", "\n\n", "a\n", "a\n\n", " a\nb", "a \nb", "a\n b", "|", "!!int 7", "12:30:45", "0o7", ".inf", "_1", "a\r\nb"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		set := map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("p")}
		for _, rule := range catalog.AttributeRules() {
			v := rapid.OneOf(
				rapid.Just(rule.Default), rapid.Just(catalog.Value{}), rapid.Just(catalog.Text("")), rapid.Map(text, catalog.Text),
				rapid.Map(rapid.Int64Range(1, catalog.MostNumber), catalog.Number), rapid.Map(rapid.Bool(), catalog.Truth),
				rapid.SampledFrom([]catalog.Value{catalog.Text("1"), catalog.Text("80,90-100"), catalog.Number(80)}),
			).Draw(t, string(rule.Attribute))
			if catalog.CheckValues(map[catalog.Attribute]catalog.Value{rule.Attribute: v}, false) == nil {
				set[rule.Attribute] = v
			}
		}
		p := process(set)
		for _, module := range rapid.SliceOf(text).Draw(t, "modules") {
			if catalog.ValidModule(module) == nil {
				p.Modules = append(p.Modules, module)
			}
		}
		file := exported(t, p, process(map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text("the next")}))
		read, err := readCatalog(strings.NewReader(file))
		if err != nil || len(read) != 2 {
			t.Fatalf("%d processes, %v, in\n%s", len(read), err, file)
		}
		if diff := cmp.Diff(p, read[0]); diff != "" {
			t.Fatalf("(-written +read):\n%s\n%s", diff, file)
		}
		if again := exported(t, read...); again != file {
			t.Fatalf("written again it is\n%s\nand was\n%s", again, file)
		}
	})
}

func TestAFileOfTheCatalogIsReadStrictly(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"name: a\nstart: x":                      "start: is no attribute of a process",
		"name: a\nname: b":                       "line 2: name is set twice",
		"name: a\n---\nport: 80":                 "line 3: name: is required",
		"name: a\n---\nname: a":                  `line 3: process "a" is defined twice, first in line 1`,
		"- name: a":                              "is not a process",
		"name: a\ntimeout: 1.5":                  "timeout: line 2: 1.5 is not a whole number; quote it if it is a text",
		"name: a\ntimeout: \"3\"":                "timeout: must be a whole number",
		"name: a\ntimeout: 99999999999999999999": "timeout: line 2: 99999999999999999999 is not a whole number",
		"name: a\nport: 080x":                    "port: must be a list of ports",
		"name: a\nmodules: web":                  "modules: line 2: is not a list of modules",
		"name: a\nmodules: [web, \"\"]":          "modules: line 2: module: is empty",
		"name: a\nmodules: [1]":                  "modules: line 2: 1 is not a text; quote it",
		"name: a\nuser: [b]":                     "user: line 2: is not a text, a number, true, false or null",
		"name: a\nuser: {b: c}":                  "user: line 2: is not a text",
		"name: 'a":                               "unexpected end",
		"name: a\nauto_start: yes":               "auto_start: must be true or false",
		"name: &a a\nuser: *b":                   "unknown anchor",
	} {
		if read, err := readCatalog(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is read as %v, %v; want %s", text, read, err, says)
		}
	}
	read, err := readCatalog(strings.NewReader("---\n# nothing\n---\nname: a\nwork_path: &w /srv\npid_file: *w\n---\n"))
	if err != nil || len(read) != 1 || read[0].Attributes["pid_file"] != "/srv" || read[0].Modules != nil {
		t.Errorf("read %v, %v", read, err)
	}
}
