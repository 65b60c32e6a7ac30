package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/procfleet/procfleet/internal/datafile"
)

// maxFile is the maximum size of the file in bytes, far more than all settings need.
const maxFile = 1 << 20

// loadFile sets the flags that no other source has set.
func (s *Settings) loadFile(path string) {
	data, err := datafile.Read(path, maxFile)
	if err != nil {
		s.unread = true
		s.Check(Flag, err)
		return
	}
	root, err := parse(data)
	if err != nil {
		s.unread = true
		s.wrongFile(path, err)
		return
	}
	if root == nil {
		return // the file has only comments
	}
	if root.Kind != yaml.MappingNode {
		s.unread = true
		s.add(origin{name: at(path, root.Line), line: root.Line}, "the file must contain names and values of settings, one `name: value` per line")
		return
	}
	first := map[string]int{} // line of the first entry with each key
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		where := origin{name: at(path, key.Line) + ": " + key.Value, line: key.Line}
		if line, twice := first[key.Value]; twice {
			s.add(where, fmt.Sprintf("already set on line %d", line))
			continue
		}
		first[key.Value] = key.Line
		s.setFromFile(key.Value, value, where)
	}
}

func at(path string, line int) string { return path + ":" + strconv.Itoa(line) }

// setFromFile sets the flag of one key. It ignores keys of other commands, because one
// file serves all commands.
func (s *Settings) setFromFile(key string, node *yaml.Node, where origin) {
	flag := s.flags.Lookup(key)
	switch {
	case slices.Contains(onlyTyped, key) || key == Flag:
		s.add(where, "belongs on the command line")
		return
	case flag == nil && !known(s.root, key):
		s.add(where, noSuchSetting(s.root, key))
		return
	}
	value, err := text(node)
	switch {
	case err != nil:
		s.add(where, err.Error())
		s.wrong[key] = true
	case flag != nil && !flag.Changed:
		s.set(flag, value, where)
	}
}

// text converts a YAML value to the text that a flag parses.
func text(node *yaml.Node) (string, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch {
	case node.Kind == yaml.SequenceNode:
		words := make([]string, len(node.Content))
		for i, each := range node.Content {
			if each.Kind != yaml.ScalarNode {
				return "", errors.New("a list of settings has only plain values")
			}
			words[i] = each.Value
		}
		return strings.Join(words, ","), nil
	case node.Kind != yaml.ScalarNode:
		return "", errors.New("contains further settings; a setting is a value or a list of values")
	case node.Tag == "!!null":
		return "", errors.New(`has no value; remove the line, or write "" for an empty value`)
	}
	return node.Value, nil
}

// parse returns the root node of a document, or nil if the document is empty.
func parse(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil //nolint:nilnil // an empty file sets nothing
	case err != nil:
		return nil, err
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("yaml: line %d: a second document begins; settings are in one", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil //nolint:nilnil // as above
	}
	return root, nil
}

var (
	// inLine matches the position in an error of the YAML library; an error without
	// a line is in the first line.
	inLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	// ofParser matches errors whose lines count from 0; in other errors they count from 1.
	ofParser = regexp.MustCompile(`did not find expected (',' or|key|'-' indicator|<document start>|node content)`)
)

func (s *Settings) wrongFile(path string, err error) {
	line := 1
	if found := inLine.FindStringSubmatch(err.Error()); found != nil && found[1] != "" {
		line, _ = strconv.Atoi(found[1]) // cannot fail: digits only
		if ofParser.MatchString(err.Error()) {
			line++
		}
	}
	s.add(origin{name: at(path, line), line: line}, "not YAML: "+inLine.ReplaceAllString(err.Error(), ""))
}

// known reports whether cmd or one of its subcommands has the flag.
func known(cmd *cobra.Command, flag string) bool {
	return cmd.Flags().Lookup(flag) != nil || cmd.PersistentFlags().Lookup(flag) != nil ||
		slices.ContainsFunc(cmd.Commands(), func(sub *cobra.Command) bool { return known(sub, flag) })
}
