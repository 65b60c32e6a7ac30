package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogIsRotatedAndOldOperationsForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small := memLimits()
	small.retainOps, small.rotateBytes = 10, 4<<10
	j, _, err := open(dir, osDisk{}, small, quiet())
	if err != nil {
		t.Fatal(err)
	}
	stuck := startOp("stuck", 0)
	receive(t, j, stuck)
	for i := range 200 {
		op := startOp("t", i)
		receive(t, j, op)
		finish(t, j, op.ID)
		if err := j.Acknowledge([]ID{op.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if j.generation < 3 {
		t.Fatalf("only %d generations", j.generation)
	}
	if n := len(j.index.ops); n > 60 {
		t.Errorf("%d operations are in memory, 10 are to be kept", n)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) > 4 {
		t.Errorf("more than two generations are kept: %v", names)
	}
	mustClose(t, j)
	j, r := mustOpen(t, dir)
	if len(r.Open) != 1 || r.Open[0].ID != stuck.ID {
		t.Errorf("open operations: %+v", r.Open)
	}
	if _, _, known := j.Result(ID{"t", 199}); !known {
		t.Error("the newest operation is forgotten")
	}
	if v := receive(t, j, startOp("t", 199)); v[0].Result == nil {
		t.Errorf("repeat after rotation: %+v", v[0])
	}
}

func TestDamagedSnapshotIsReplacedByTheGenerationBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	for i := range 3 {
		receive(t, j, startOp("t", i))
		j.mu.Lock()
		if err := j.rotate(); err != nil {
			t.Fatal(err)
		}
		j.mu.Unlock()
	}
	receive(t, j, startOp("t", 3))
	newest := j.path(snapshotPrefix, j.generation)
	mustClose(t, j)
	data, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(newest, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, r := mustOpen(t, dir); len(r.Open) != 4 {
		t.Fatalf("%d of 4 operations are left", len(r.Open))
	}
}

func testAnotherFormatIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	payload, err := encodeRecord(&record{Group: 1, Head: &head{Format: format + 1, Generation: 1}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "log-000001")
	// After the head follows data that this program cannot read.
	data := append(appendFrame(nil, payload), "of another format"...)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = Open(dir, quiet())
	if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "has format 2, this agent reads format 1. Nothing was changed. Install the agent again") {
		t.Fatalf("got %v", err)
	}
	if after, err := os.ReadFile(name); err != nil || string(after) != string(data) {
		t.Fatalf("file was changed: %v", err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Fatalf("files were added: %v", names)
	}
}
