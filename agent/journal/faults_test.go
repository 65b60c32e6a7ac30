package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

// faultyDisk is a disk whose changing calls can fail. In the zero value no call fails.
type faultyDisk struct {
	osDisk
	mu    sync.Mutex
	calls int
	from  int // first call that fails, counted from 1; 0 is none
	until int // last call that fails
	err   error
	torn  int // a failing write writes one torn-th of its bytes; 0 writes none
}

// next reports the error of the next call, counting it.
func (d *faultyDisk) next() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.from > 0 && d.calls >= d.from && d.calls <= d.until {
		return d.err
	}
	return nil
}

// fail makes count calls fail, beginning with the n-th call from now.
func (d *faultyDisk) fail(n, count int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.from, d.until, d.err = d.calls+n, d.calls+n+count-1, err
}

func (d *faultyDisk) heal() { d.fail(0, 0, nil) }

func (d *faultyDisk) Is(name string, f file) (bool, error) {
	if ff, ok := f.(*faultyFile); ok {
		f = ff.file
	}
	return d.osDisk.Is(name, f)
}

func (d *faultyDisk) MkdirAll(dir string) error {
	return errors.Join(d.next(), d.osDisk.MkdirAll(dir))
}

func (d *faultyDisk) Rename(from, to string) error {
	if err := d.next(); err != nil {
		return err
	}
	return d.osDisk.Rename(from, to)
}

func (d *faultyDisk) SyncDir(dir string) error {
	if err := d.next(); err != nil {
		return err
	}
	return d.osDisk.SyncDir(dir)
}

func (d *faultyDisk) Open(name string, flag int) (file, error) {
	if flag != os.O_RDONLY {
		if err := d.next(); err != nil {
			return nil, err
		}
	}
	f, err := d.osDisk.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file: f, disk: d}, nil
}

type faultyFile struct {
	file
	disk *faultyDisk
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.disk.next(); err != nil {
		if f.disk.torn == 0 {
			return 0, err
		}
		n, _ := f.file.WriteAt(p[:len(p)/f.disk.torn], off)
		return n, err
	}
	return f.file.WriteAt(p, off)
}

func (f *faultyFile) Sync() error {
	if err := f.disk.next(); err != nil {
		return err
	}
	return f.file.Sync()
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.disk.next(); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

// TestDiskFailsAtEveryCall records one operation in the journal while the n-th call to the disk, and
// some following calls, fail. After a crash the journal must contain every record that it reported as
// durable, and no operation that it rejected.
func TestDiskFailsAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		for _, count := range []int{1, 2, 3, 8} {
			for _, torn := range []int{0, 1, 2} {
				for n := 1; n <= 16; n++ {
					t.Run(fmt.Sprintf("%v/%d calls from %d, torn %d", cause, count, n, torn), func(t *testing.T) {
						t.Parallel()
						d := &faultyDisk{torn: torn}
						walkThroughFailure(t, d, func() { d.fail(n, count, cause) })
					})
				}
			}
		}
	}
}

func walkThroughFailure(t *testing.T, d *faultyDisk, breakIt func()) {
	t.Helper()
	dir := t.TempDir()
	// A tiny log lets the failing calls meet rotation too.
	small := memLimits()
	small.retainOps, small.rotateBytes = 100, 1500
	j, _, err := open(dir, d, small, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // again, should the test end early
	breakIt()
	accepted, finished := map[ID]bool{}, map[ID]bool{}
	one := func(i int) {
		op := startOp("t", i)
		v, err := j.Receive([]Op{op})
		if err != nil {
			t.Fatal(err)
		}
		if r := v[0].Refused; r != nil {
			if r.Code != agentproto.CodeAgentAbnormal {
				t.Errorf("refused with code %d: %s", r.Code, r.Message)
			}
			return
		}
		accepted[op.ID] = true
		if j.Execute(op.ID, Exec{BootID: "b"}) == nil && j.Finish(op.ID, success(i)) == nil {
			finished[op.ID] = true
		}
	}
	for i := range 8 {
		one(i)
	}
	d.heal()
	one(100) // works again at once
	if !finished[ID{"t", 100}] {
		t.Error("journal does not work again although the disk does")
	}
	mustClose(t, j)

	j, r := mustOpen(t, dir)
	seen := map[ID]bool{}
	for _, op := range r.Open {
		seen[op.ID] = true
		if finished[op.ID] || !accepted[op.ID] {
			t.Errorf("%v is open after the crash: accepted %v, finished %v", op.ID, accepted[op.ID], finished[op.ID])
		}
	}
	for _, op := range r.Unacknowledged {
		seen[op.ID] = true
		if !finished[op.ID] {
			t.Errorf("%v has a result after the crash that was not reported durable", op.ID)
		}
		if got, _, _ := j.Result(op.ID); got.Message != "success" || got.Item != op.Item {
			t.Errorf("%v: result %+v", op.ID, got)
		}
	}
	for id := range accepted {
		if !seen[id] {
			t.Errorf("%v was accepted and is lost", id)
		}
	}
}

func TestRotationThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 9; n++ {
		t.Run(fmt.Sprintf("call %d", n), func(t *testing.T) {
			t.Parallel()
			d, dir := &faultyDisk{}, t.TempDir()
			j, _, err := open(dir, d, defaultLimits(), quiet())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = j.Close() }) // again, should the test end early
			receive(t, j, startOp("before", 0))
			d.fail(n, 100, syscall.ENOSPC)
			j.mu.Lock()
			err = j.rotate()
			j.mu.Unlock()
			d.heal()
			t.Logf("rotate: %v", err)
			receive(t, j, startOp("after", 0))
			mustClose(t, j)
			if _, r := mustOpen(t, dir); len(r.Open) != 2 {
				t.Errorf("%d of 2 operations are left", len(r.Open))
			}
		})
	}
}

func testFailedFsyncIsNotTrustedLater(t *testing.T) {
	t.Parallel()
	d, dir := &faultyDisk{}, t.TempDir()
	j, _, err := open(dir, d, defaultLimits(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // again, should the test end early
	d.fail(2, 1, syscall.EIO)           // the write works, its fsync does not
	if v := receive(t, j, startOp("lost", 0)); v[0].Refused == nil {
		t.Fatal("accepted without a durable record")
	}
	before := j.generation
	receive(t, j, startOp("next", 0))
	if j.generation == before {
		t.Error("the log is written again after its fsync failed")
	}
	mustClose(t, j)
	if _, r := mustOpen(t, dir); len(r.Open) != 1 || r.Open[0].Task != "next" {
		t.Errorf("open operations: %+v", r.Open)
	}
}

func testRefusedOperationStaysRefusedAfterACrash(t *testing.T) {
	t.Parallel()
	d, dir := &faultyDisk{torn: 1}, t.TempDir()
	j, _, err := open(dir, d, defaultLimits(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	d.fail(1, 1, syscall.ENOSPC) // everything was written, and yet it failed
	if v := receive(t, j, startOp("refused", 0)); v[0].Refused == nil {
		t.Fatal("accepted although the write failed")
	}
	mustClose(t, j)
	if _, r := mustOpen(t, dir); len(r.Open) != 0 {
		t.Errorf("the refused operation is open: %+v", r.Open)
	}
}

func TestFolderRemovedUnderTheRunningAgent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	j, _ := mustOpen(t, dir)
	receive(t, j, startOp("before", 0))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if v := receive(t, j, startOp("after", 0)); v[0] != (Admission{}) {
		t.Fatalf("refused although the folder can be made again: %+v", v[0].Refused)
	}
	mustClose(t, j)
	_, r := mustOpen(t, dir)
	if len(r.Open) != 2 || r.Open[0].Task != "before" || r.Open[1].Task != "after" {
		t.Errorf("open operations: %+v", r.Open)
	}
}

// logOf returns a closed journal's only log and the offsets at which its
// groups begin.
func logOf(t *testing.T, operations int) (data []byte, groups []int64) {
	t.Helper()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	for i := range operations {
		groups = append(groups, j.current.size)
		receive(t, j, startOp("t", i))
	}
	groups = append(groups, j.current.size)
	mustClose(t, j)
	data, err := os.ReadFile(filepath.Join(dir, "log-000001"))
	if err != nil {
		t.Fatal(err)
	}
	return data, groups
}

func testLogTornAtEveryOffset(t *testing.T) {
	t.Parallel()
	data, groups := logOf(t, 3)
	for cut := range data {
		if cut%sparse != 0 && !slices.Contains(groups, int64(cut)) {
			continue
		}
		whole := 0
		for _, end := range groups[1:] {
			if int64(cut) >= end {
				whole++
			}
		}
		d := memDisk{filepath.Join(memDir, "log-000001"): {data: slices.Clone(data[:cut])}}
		j, r, err := open(memDir, d, memLimits(), quiet())
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if len(r.Open) != whole {
			t.Fatalf("cut at %d: %d operations, want %d", cut, len(r.Open), whole)
		}
		clean := cut == 0 || int64(cut) == groups[whole]
		if copies := len(d) - 1; clean != (copies == 0) {
			t.Fatalf("cut at %d: %d copies of the torn tail", cut, copies)
		}
		receive(t, j, startOp("more", 0))
		mustClose(t, j)
		again, r, err := open(memDir, d, memLimits(), quiet())
		if err != nil || len(r.Open) != whole+1 {
			t.Fatalf("cut at %d: %d operations later, want %d (%v)", cut, len(r.Open), whole+1, err)
		}
		mustClose(t, again)
	}
}

func TestGroupTornInAnyOrderIsCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, _ := mustOpen(t, dir)
	receive(t, j, startOp("durable", 0))
	from := j.current.size
	// One group of several records, of which the disk only wrote the end.
	ops := make([]Op, 8)
	for i := range ops {
		ops[i] = startOp("torn", i)
	}
	receive(t, j, ops...)
	mustClose(t, j)
	name := filepath.Join(dir, "log-000001")
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 512), from); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, r := mustOpen(t, dir); len(r.Open) != 1 {
		t.Errorf("%d operations, want the durable one", len(r.Open))
	}
}
