package procop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// writeOutput writes an output file of a process, as a command would, and returns its path.
func writeOutput(t *testing.T, o *Outputs, text string) string {
	t.Helper()
	path := o.ProcessPath("shop:web")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, o *Outputs, file string, offset int64, lines, limit int) OutputPage {
	t.Helper()
	page, err := o.Read(OutputQuery{Key: "shop:web", File: file, Offset: offset, Lines: lines}, limit)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestTheLastLinesOfOutputAreReadAndContinued(t *testing.T) {
	t.Parallel()
	o := NewOutputs(t.TempDir(), testenv.Log(t))
	if page := read(t, o, "", 0, 10, 100); page.File != "" || len(page.Data) != 0 {
		t.Fatalf("without output: %+v", page)
	}
	first := writeOutput(t, o, "one\ntwo\nthree")
	for lines, want := range map[int]string{0: "", 1: "three", 2: "two\nthree", 9: "one\ntwo\nthree"} {
		if page := read(t, o, "", 0, lines, 100); string(page.Data) != want || page.Next != 13 {
			t.Errorf("tail %d: %q, next %d", lines, page.Data, page.Next)
		}
	}
	page := read(t, o, "", 0, 1, 100)
	if page = read(t, o, page.File, page.Next, 0, 100); len(page.Data) != 0 || page.More || page.Lost {
		t.Errorf("at the end: %+v", page)
	}
	add(t, first, "\nfour\n")
	if page = read(t, o, page.File, page.Next, 0, 3); string(page.Data) != "\nfo" || !page.More {
		t.Errorf("a page of three bytes: %+v", page)
	}
	o.Discard(first) // the process has ended
	second := writeOutput(t, o, "again\n")
	if page = read(t, o, page.File, page.Next, 0, 100); string(page.Data) != "ur\n" || !page.More || page.Lost {
		t.Errorf("the rest of the first start: %+v", page)
	}
	if page = read(t, o, page.File, page.Next, 0, 100); string(page.Data) != "again\n" || page.More || page.Lost {
		t.Errorf("the second start: %+v", page)
	}
	if page := read(t, o, "", 0, 5, 100); string(page.Data) != "again\n" {
		t.Errorf("the tail: %+v", page)
	}
	o.Discard(second)
	o.Discard(writeOutput(t, o, "third\n"))
	if page = read(t, o, "1", 0, 0, 100); string(page.Data) != "third\n" || !page.Lost {
		t.Errorf("after output that is gone: %+v", page)
	}
}

func TestTheEndOfOutputRemainsAfterTheProcessHasEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := NewOutputs(dir, testenv.Log(t))
	var text strings.Builder
	for i := 0; text.Len() < 3*lastOutput; i++ {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	o.Discard(writeOutput(t, o, text.String()))
	o.Discard(writeOutput(t, o, "")) // of a start that wrote nothing
	o.Discard(o.Path("mark"))        // of another command
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("files %v, %v", entries, err)
	}
	if info, err := entries[0].Info(); err != nil || info.Size() != lastOutput {
		t.Errorf("%d bytes remain, %v", info.Size(), err)
	}
	page := read(t, o, "", 0, 1, lastOutput)
	if page.Next != int64(text.Len()) || !strings.HasSuffix(text.String(), string(page.Data)) || len(page.Data) == 0 {
		t.Errorf("tail %q, next %d of %d", page.Data, page.Next, text.Len())
	}
	if page = read(t, o, page.File, 0, 0, 10); !page.Lost || string(page.Data) != text.String()[text.Len()-lastOutput:][:10] {
		t.Errorf("the first page of what remains: %+v", page)
	}
	later := NewOutputs(dir, testenv.Log(t)) // the next agent process
	if err := later.Recover(); err != nil {
		t.Fatal(err)
	}
	if page := read(t, later, "", 0, 1, lastOutput); len(page.Data) == 0 {
		t.Error("the output is gone after a restart of the agent")
	}
}

func add(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Clean(path), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestOutputSinceATimeBeginsWithWhatWasWrittenThen(t *testing.T) {
	t.Parallel()
	o := NewOutputs(t.TempDir(), testenv.Log(t))
	since := func(age time.Duration) string {
		t.Helper()
		page, err := o.Read(OutputQuery{Key: "shop:web", Age: age}, 100)
		if err != nil || page.File == "" {
			t.Fatalf("%+v, %v", page, err)
		}
		return string(page.Data)
	}
	first := writeOutput(t, o, "first\n")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(first, old, old); err != nil {
		t.Fatal(err)
	}
	if got := since(10 * time.Minute); got != "" {
		t.Errorf("of a process that wrote an hour ago: %q", got)
	}
	second := writeOutput(t, o, "one\ntwo\n")
	o.inUse.Store(second, &growth{samples: []sizeSample{{time.Now().Add(-time.Hour), 4}, {time.Now().Add(-time.Minute), 8}}})
	add(t, second, "three\n")
	for age, want := range map[time.Duration]string{
		time.Second: "three\n", 5 * time.Minute: "two\nthree\n", 90 * time.Minute: "first\n",
	} {
		if got := since(age); got != want {
			t.Errorf("since %s: %q, want %q", age, got, want)
		}
	}
}

func TestALogIsReadAndFollowedThroughRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "web.log")
	readLog := func(q OutputQuery) OutputPage {
		t.Helper()
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		page, err := ReadLog(file, q, 100)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	add(t, path, "one\ntwo\n")
	page := readLog(OutputQuery{Lines: 1})
	if string(page.Data) != "two\n" || page.More || page.Lost {
		t.Errorf("the tail: %+v", page)
	}
	add(t, path, "three\n")
	if page = readLog(OutputQuery{File: page.File, Offset: page.Next}); string(page.Data) != "three\n" || page.Lost {
		t.Errorf("followed: %+v", page)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add(t, path, "four\n")
	if page = readLog(OutputQuery{File: page.File, Offset: page.Next}); string(page.Data) != "four\n" || !page.Lost {
		t.Errorf("after rotation: %+v", page)
	}
}
