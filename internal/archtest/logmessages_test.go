package archtest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var writeLogMessages = flag.Bool("write-log-messages", false, "write testdata/logmessages.txt anew")

// notLogging are folders of code that does not run in production.
var notLogging = []string{"test", "internal/testenv", "taskstore/storetest", "catalog/catalogtest", "cmd/internal/bench"}

// logLevels are the methods of logrus by which a message is written.
var logLevels = map[string]string{"Debug": "debug", "Info": "info", "Warn": "warn", "Error": "error"}

// maxLogWords bounds a message: data belongs in fields.
const maxLogWords = 8

// oldWords are words that log messages must not contain, each with the usual words for them.
var oldWords = map[string]string{
	"believe": "verify, reject", "believed": "verified, rejected", "away": "unavailable", "told": "notified, published", "heal": "recover",
	"noted": "stored, recorded", "nobody": "the name of the actor", "somebody": "the name of the actor", "again and again": "repeatedly",
	"taken": "accepted, removed", "room": "limit, space", "looked": "queried", "any more": "no longer, or the new state",
}

// TestLogMessagesAreThoseOfTheVocabulary compares the log messages with a list, so that a change of a
// message that operators search for is visible, and limits the length of messages.
func TestLogMessagesAreThoseOfTheVocabulary(t *testing.T) {
	t.Parallel()
	const list = "testdata/logmessages.txt"
	messages := logMessages(t, "../..")
	for _, m := range messages {
		if n := len(strings.Fields(m.text)); n > maxLogWords {
			t.Errorf("%s: %q has %d words, more than %d: put data into fields", m.at, m.text, n, maxLogWords)
		}
		for old, usual := range oldWords {
			if strings.Contains(" "+m.text+" ", " "+old+" ") {
				t.Errorf("%s: %q has %q: say %s", m.at, m.text, old, usual)
			}
		}
	}
	lines := make([]string, len(messages))
	for i, m := range messages {
		lines[i] = m.line()
	}
	slices.Sort(lines)
	got := strings.Join(slices.Compact(lines), "\n") + "\n"
	if *writeLogMessages {
		if err := os.WriteFile(list, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	kept := strings.Split(string(want), "\n")
	for line := range strings.SplitSeq(got, "\n") {
		if !slices.Contains(kept, line) {
			t.Errorf("not in %s: %s", list, line)
		}
	}
	for _, line := range kept {
		if !slices.Contains(lines, line) && line != "" {
			t.Errorf("only in %s: %s", list, line)
		}
	}
	t.Error("operators search logs for these messages and fields: say so in CHANGELOG.md, then go test ./internal/archtest -run LogMessages -write-log-messages")
}

// logMessage is a call that logs a constant message.
type logMessage struct {
	at, folder, level, text string
	fields                  []string // fields that the call itself adds
}

func (m *logMessage) line() string {
	return strings.TrimSpace(fmt.Sprintf("%-20s %-5s %s  %s", m.folder, m.level, m.text, strings.Join(m.fields, " ")))
}

func logMessages(t *testing.T, root string) (messages []*logMessage) {
	t.Helper()
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(notLogging, folder) || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".git") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if m := logCall(node); m != nil {
				m.at, m.folder = files.Position(node.Pos()).String(), filepath.ToSlash(filepath.Dir(folder))
				messages = append(messages, m)
			}
			return true
		})
		return nil
	})
	if err != nil || len(messages) < 100 {
		t.Fatalf("%d log messages, %v", len(messages), err)
	}
	return messages
}

// logCall returns the message that a node logs; nil if the node is no log call. Methods with the name Error
// of other types have no constant argument.
func logCall(node ast.Node) *logMessage {
	call, ok := node.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || logLevels[method.Sel.Name] == "" {
		return nil
	}
	text, ok := constant(call.Args[0])
	if !ok {
		return nil
	}
	m := &logMessage{level: logLevels[method.Sel.Name], text: text}
	m.addFields(method.X)
	slices.Sort(m.fields)
	return m
}

// addFields follows the calls of WithField, WithFields and WithError before.
func (m *logMessage) addFields(on ast.Expr) {
	call, ok := on.(*ast.CallExpr)
	if !ok {
		return
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	m.addFields(method.X)
	switch method.Sel.Name {
	case "WithError":
		m.fields = append(m.fields, "error")
	case "WithField":
		if key, ok := constant(call.Args[0]); ok {
			m.fields = append(m.fields, key)
		}
	case "WithFields":
		list, ok := call.Args[0].(*ast.CompositeLit)
		if !ok {
			return
		}
		for _, element := range list.Elts {
			pair, ok := element.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			if key, ok := constant(pair.Key); ok {
				m.fields = append(m.fields, key)
			}
		}
	}
}

func constant(e ast.Expr) (string, bool) {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}
