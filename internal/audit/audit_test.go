package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet"
)

// fakeSink keeps records in memory, or fails.
type fakeSink struct {
	mu    sync.Mutex
	err   error
	lines []string
	enter chan struct{} // if set, each Keep waits for one

	hasEnds bool
}

func (p *fakeSink) Name() string { return "fake" }

func (p *fakeSink) HasTaskEvents() bool { return p.hasEnds }

func (p *fakeSink) Keep(_ context.Context, lines []Line, _ bool) error {
	if p.enter != nil {
		<-p.enter
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	for i := range lines {
		p.lines = append(p.lines, string(lines[i].JSON))
	}
	return nil
}

func (p *fakeSink) all(t *testing.T) []Record {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	return decoded(t, strings.Join(p.lines, "\n"))
}

func decoded(t *testing.T, text string) []Record {
	t.Helper()
	var records []Record
	for line := range strings.Lines(text) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		records = append(records, r)
	}
	return records
}

func open(t *testing.T, required bool, sinks ...Sink) (*Log, *logtest.Hook) {
	t.Helper()
	logger, hook := logtest.NewNullLogger()
	l, err := New(Config{Sinks: sinks, Required: required, Log: logger, Meter: noop.Meter{}})
	if err != nil {
		t.Fatal(err)
	}
	return l, hook
}

var errGone = errors.New("the disk is gone")

func TestARecordIsKeptIfOnePlaceHasIt(t *testing.T) {
	t.Parallel()
	for _, required := range []bool{false, true} {
		for name, at := range map[string]struct {
			sinks []Sink
			kept  bool
		}{
			"both":   {[]Sink{&fakeSink{}, &fakeSink{}}, true},
			"first":  {[]Sink{&fakeSink{}, &fakeSink{err: errGone}}, true},
			"second": {[]Sink{&fakeSink{err: errGone}, &fakeSink{}}, true},
			"none":   {[]Sink{&fakeSink{err: errGone}, &fakeSink{err: errGone}}, false},
			"no":     {nil, true},
		} {
			t.Run(fmt.Sprintf("%s required=%v", name, required), func(t *testing.T) {
				t.Parallel()
				l, hook := open(t, required, at.sinks...)
				for what, keep := range map[string]func(context.Context, Record) error{"require": l.Require, "keep": l.Keep} {
					err := keep(t.Context(), Record{ID: what, Event: Accepted})
					if want := required && !at.kept; errors.Is(err, ErrNotKept) != want || (err != nil) != want {
						t.Errorf("%s: %v", what, err)
					}
				}
				l.Close()
				loud := false
				for _, e := range hook.AllEntries() {
					loud = loud || e.Level == logrus.ErrorLevel && strings.Contains(e.Message, "lost")
				}
				if loud == at.kept {
					t.Errorf("it told of losses: %v", loud)
				}
			})
		}
	}
}

func TestNobodyWaitsForAPlaceThatIsBehind(t *testing.T) {
	t.Parallel()
	stuck := &fakeSink{enter: make(chan struct{})}
	l, _ := open(t, false, stuck)
	const more = 3 * queued
	for i := range more { // returns at all: nothing is taken while stuck
		l.Note(Record{ID: fmt.Sprint(i), Event: Refused})
	}
	close(stuck.enter)
	l.Close()
	if n := len(stuck.all(t)); n < queued || n > queued+batched {
		t.Errorf("%d records were kept, of a queue of %d", n, queued)
	}
	l.Note(Record{ID: "late"})
	if err := l.Keep(t.Context(), Record{ID: "late"}); err != nil {
		t.Error(err)
	}
}

func TestANilLogKeepsNothing(t *testing.T) {
	t.Parallel()
	var l *Log
	l.Note(Record{})
	l.Refused(Record{}, true)
	if err := errors.Join(l.Require(t.Context(), Record{}), l.Keep(t.Context(), Record{})); err != nil {
		t.Error(err)
	}
	l.Close()
}

func TestAFileIsMadeAnewWhenItIsRenamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := open(t, true, f)
	keep := func(id string) {
		t.Helper()
		if err := l.Require(t.Context(), Record{ID: id, Event: Accepted}); err != nil {
			t.Fatal(err)
		}
	}
	keep("one")
	keep("two")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	keep("three")
	l.Close()
	ids := func(path string) (ids []string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range decoded(t, string(text)) {
			ids = append(ids, r.ID)
		}
		return ids
	}
	if a, b := ids(path+".1"), ids(path); fmt.Sprint(a, b) != "[one two] [three]" {
		t.Errorf("%v, then %v", a, b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// If writes to the file succeed and its sync fails, the log must not confirm the record.
func TestWhoWaitsForARecordWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.Symlink(os.DevNull, path); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := open(t, true, f)
	if err := l.Require(t.Context(), Record{ID: "one", Event: Accepted}); !errors.Is(err, ErrNotKept) {
		t.Errorf("a record that was not synced: %v", err)
	}
	l.Close()
}

func TestHalfALineIsLeftToItself(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte("{\"id\":\"whole\"}\n{\"id\":\"ha"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Keep(t.Context(), []Line{{JSON: []byte(`{"id":"next"}`)}}, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	want := "{\"id\":\"whole\"}\n{\"id\":\"ha\n{\"id\":\"next\"}\n{\"id\":\"next\"}\n"
	if err != nil || string(text) != want {
		t.Errorf("%q, %v", text, err)
	}
}

func TestAFolderThatIsGoneIsAnErrorAndComesBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "logs")
	if _, err := OpenFile(filepath.Join(dir, "audit.jsonl")); err == nil {
		t.Fatal("it opened a file in a folder that is not there")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	line := []Line{{JSON: []byte(`{"id":"x"}`)}}
	if err := f.Keep(t.Context(), line, true); err == nil {
		t.Error("a record is kept in a file that has no name")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Keep(t.Context(), line, true), f.Close()); err != nil {
		t.Error(err)
	}
}

// TestAFloodOfRefusalsFillsNothing records 20,000 rejections from 5,000 addresses, and one rejection of an
// application. The log must contain a few hundred records for the flood, whose counts add up to 20,000, and
// a separate record for the application.
func TestAFloodOfRefusalsFillsNothing(t *testing.T) {
	t.Parallel()
	const calls, addresses = 20_000, 5_000
	sink := &fakeSink{}
	l, _ := open(t, false, sink)
	for i := range calls {
		l.Refused(Record{
			ID: fmt.Sprint(i, "/refused"), Event: Refused, Reason: "bad_header", Claimed: "app" + fmt.Sprint(i%7),
			Address: fmt.Sprintf("192.0.%d.%d", i%addresses>>8, i%addresses&255), User: "eve",
		}, true)
	}
	l.Refused(Record{ID: "own", Event: Refused, Reason: "bad_header", Application: "shop"}, false)
	l.Close()
	told, own := 0, false
	records := sink.all(t)
	for _, r := range records {
		if r.ID == "own" {
			own = true
			continue
		}
		told++
		told += r.Repeats
		if r.Repeats > 0 {
			told-- // the sum is no refusal
		}
	}
	if told != calls || !own {
		t.Errorf("records of %d refusals, want %d; of the application: %v", told, calls, own)
	}
	if most := (maxKinds+1)*(inFull+1) + 1; len(records) > most {
		t.Errorf("%d records, at most %d", len(records), most)
	}
}

func TestWhatCallersMakeLongIsCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1<<16)
	r := Record{Call: long, Application: long, Claimed: long, User: long, Address: long, Request: long, Business: long, Field: long}
	for range 100_000 {
		r.AddProcess(long)
	}
	sink := &fakeSink{}
	l, _ := open(t, true, sink)
	if err := l.Require(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if n := len(sink.lines[0]); n > 8<<10 || r.Specs != 100_000 {
		t.Errorf("a record of %d bytes for %d processes", n, r.Specs)
	}
}

func TestALineHasNoOtherLineInIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	f, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := open(t, false, f)
	forged := "x\n{\"id\":\"forged\",\"event\":\"accepted\"}\r\n\u2028"
	l.Refused(Record{ID: "a", Event: Refused, At: time.Unix(0, 0).UTC(), Claimed: forged, User: forged, Field: forged}, true)
	l.Close()
	text, err := os.ReadFile(path)
	if err != nil || bytes.Count(text, []byte("\n")) != 1 {
		t.Fatalf("%q, %v", text, err)
	}
	if r := decoded(t, string(text)); len(r) != 1 || r[0].Claimed != forged {
		t.Errorf("%+v", r)
	}
}

// The end of a task is recorded only in sinks that do not contain the task's event; the log does not wait
// for the other sinks.
func TestTheEndOfATaskGoesToTheSinksThatDoNotHaveItsEvent(t *testing.T) {
	t.Parallel()
	task := procfleet.Task{ID: "a", State: procfleet.TaskFinished, Items: 1}
	broken := errors.New("no space left on device")
	for name, test := range map[string]struct {
		file, stream bool
		fileErr      error
		kept         int
		fails        bool
	}{
		"stream alone":          {stream: true},
		"both":                  {stream: true, file: true, kept: 1},
		"both, file is broken":  {stream: true, file: true, fileErr: broken},
		"file alone":            {file: true, kept: 1},
		"file alone, is broken": {file: true, fileErr: broken, fails: true},
		"nothing":               {},
	} {
		file, stream := &fakeSink{err: test.fileErr}, &fakeSink{hasEnds: true}
		logger, _ := logtest.NewNullLogger()
		cfg := Config{Required: true, Log: logger, Meter: noop.Meter{}}
		if test.file {
			cfg.Sinks = append(cfg.Sinks, file)
		}
		if test.stream {
			cfg.Sinks = append(cfg.Sinks, stream)
		}
		log, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = log.KeepEvent(t.Context(), OfEnd(&task))()
		log.Close()
		if got := len(file.all(t)); (err != nil) != test.fails || got != test.kept || len(stream.all(t)) != 0 {
			t.Errorf("%s: %v, %d records in the file, %d in the stream", name, err, got, len(stream.all(t)))
		}
	}
}
