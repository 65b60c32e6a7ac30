package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// readSpec reads a spec file, or stdin for "-". It rejects unknown keys, and returns
// all errors that make the spec invalid for action.
func readSpec(stdin io.Reader, path string, action procfleet.Action) (spec procfleet.ProcessSpec, err error) {
	if path == "" {
		return spec, command.Usagef("-f is required: name the file with the spec of the process")
	}
	data, err := readInput(stdin, path)
	if err != nil {
		return spec, command.Usagef("-f: %w", err)
	}
	if spec, err = parseSpec(data, action); err != nil {
		return spec, command.Usagef("-f %s: %w", path, err)
	}
	return spec, nil
}

func parseSpec(data []byte, action procfleet.Action) (procfleet.ProcessSpec, error) {
	spec := procfleet.DefaultSpec()
	if severalDocuments(data) {
		return spec, errors.New("more than one YAML document: an operation has one process")
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return spec, err
	}
	if string(raw) == "null" {
		return spec, errors.New("the file is empty")
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&spec); err != nil {
		return spec, wrongType(err)
	}
	if err := spec.Validate(action); err != nil {
		return spec, errors.New(strings.ReplaceAll("\n"+err.Error(), "\n", "\n  "))
	}
	return spec, nil
}

// wrongType rewords errors of encoding/json about a value of the wrong type.
func wrongType(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	case wrong.Field == "":
		return fmt.Errorf("got a %s, want the keys and values of a spec", wrong.Value)
	}
	return fmt.Errorf("%s: got a %s, want a value of type %s", wrong.Field, wrong.Value, wrong.Type)
}

// severalDocuments reports whether a YAML text has content after its first document,
// which the parser would ignore. Only document marks begin a line with --- or three
// dots.
func severalDocuments(data []byte) bool {
	begun, ended := false, false
	for line := range strings.Lines(string(data)) {
		text := strings.TrimSpace(line)
		mark, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		switch {
		case mark == "---" || mark == "...":
			ended = begun
			begun = begun || strings.TrimSpace(rest) != ""
		case text == "" || strings.HasPrefix(text, "#"):
		case ended:
			return true
		default:
			begun = true
		}
	}
	return false
}
