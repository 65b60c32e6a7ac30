package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/settings"
)

const goodSpec = "namespace: a\nname: b\nproc_name: c\nlabels: {n: 1}\n"

func TestASpecIsOneDocument(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		goodSpec:                                 "",
		"# c\n---\n" + goodSpec + "---\n# end\n": "",
		goodSpec + "...\n":                       "",
		goodSpec + "---\nname: d\n":              "more than one",
		goodSpec + "...\nname: d\n":              "more than one",
		"--- {name: a}\n---\nname: b\n":          "more than one",
		"":                                       "empty",
		"# only a comment\n":                     "empty",
		"- a\n":                                  "array",
		goodSpec + "alive: {start_retries: x}":   "alive.start_retries",
		goodSpec + "alive: {op_timeout: x}":      "duration",
		goodSpec + "name: twice\n":               "name",
		goodSpec + "nane: misspelt\n":            "nane",
	} {
		_, err := parseSpec([]byte(text), procfleet.ActionStatus)
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestEveryProblemOfASpecIsTold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(path, []byte("namespace: a\nsetup_path: x\nalive: {op_timeout: 0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := readSpec(nil, path, procfleet.ActionStart)
	if !errors.Is(err, settings.ErrUsage) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{path, "namespace", "proc_name", "setup_path", "alive.op_timeout", "control.start"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
}

func TestASpecCanComeFromStandardInput(t *testing.T) {
	t.Parallel()
	spec, err := readSpec(strings.NewReader(goodSpec), "-", procfleet.ActionStatus)
	if err != nil || spec.ProcName != "c" || spec.Alive != procfleet.DefaultSpec().Alive {
		t.Errorf("%+v, %v", spec, err)
	}
}
