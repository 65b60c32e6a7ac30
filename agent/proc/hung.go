package proc

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Bounds of [Hung].
const (
	hungCommands = 4  // commands in the text: the first, and the last three
	hungBytes    = 80 // of one command line
)

// Hung describes what a command is busy with: the command lines from its leader to its deepest
// descendant, and how long that has been running. It returns "" if the leader does not run.
//
//	`bash -l` → `pyenv rehash` (19 s)
func Hung(leader Identity) string {
	table, err := ReadTable()
	if err != nil {
		return ""
	}
	path := table.deepest(leader)
	if len(path) == 0 {
		return ""
	}
	last := path[len(path)-1]
	if len(path) > hungCommands {
		path = slices.Concat(path[:1], path[len(path)-hungCommands+1:])
	}
	lines := make([]string, len(path))
	for i, st := range path {
		lines[i] = "`" + commandLine(st) + "`"
	}
	text := strings.Join(lines, " → ")
	if now, err := NowTicks(); err == nil && now >= last.Start {
		age := time.Duration(now-last.Start) * (time.Second / TicksPerSecond)
		text += fmt.Sprintf(" (%.0f s)", age.Seconds())
	}
	return text
}

// deepest returns the processes from root to its deepest descendant that runs.
func (t *Table) deepest(root Identity) []Stat {
	tree := slices.DeleteFunc(t.Tree(root), func(st Stat) bool { return dead(st.State) })
	if len(tree) == 0 {
		return nil
	}
	parents := make(map[int]Stat, len(tree))
	for _, st := range tree {
		parents[st.PID] = st
	}
	path := []Stat{tree[len(tree)-1]} // each generation follows the one before
	for len(path) < len(tree) && path[0].PID != root.PID {
		parent, known := parents[path[0].PPID]
		if !known {
			return path
		}
		path = slices.Insert(path, 0, parent)
	}
	return path
}

// commandLine returns the command line of a process in one line, shortened; its name if the
// command line cannot be read.
func commandLine(st Stat) string {
	args, err := readArgs(st.PID)
	if err != nil || len(args) == 0 {
		return st.Comm
	}
	words := strings.FieldsFunc(strings.Join(args, " "), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	line := strings.Join(words, " ")
	if len(line) > hungBytes {
		line = strings.ToValidUTF8(line[:hungBytes], "") + "…"
	}
	return line
}
