package journal

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

// smallDisk is a disk in memory that gets full.
type smallDisk struct {
	memDisk
	room int // bytes that all files may have together
}

func (d *smallDisk) Open(name string, flag int) (file, error) {
	f, err := d.memDisk.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &smallFile{f.(*memFile), d}, nil
}

func (d *smallDisk) Is(name string, f file) (bool, error) {
	return d.memDisk.Is(name, f.(*smallFile).memFile)
}

func (d *smallDisk) used() (n int) {
	for _, f := range d.memDisk {
		n += len(f.data)
	}
	return n
}

type smallFile struct {
	*memFile
	disk *smallDisk
}

func (f *smallFile) WriteAt(p []byte, off int64) (int, error) {
	more := max(int(off)+len(p)-len(f.data), 0)
	if left := f.disk.room - f.disk.used(); more > left {
		n, _ := f.memFile.WriteAt(p[:max(0, len(p)-more+max(left, 0))], off)
		return n, syscall.ENOSPC
	}
	return f.memFile.WriteAt(p, off)
}

// smallLimits returns limits with a disk reserve for a few results.
func smallLimits() limits {
	l := defaultLimits()
	l.reserveBytes = 10_000
	return l
}

func TestFullDiskLetsEndWhatHasBegun(t *testing.T) {
	t.Parallel()
	d := &smallDisk{memDisk: memDisk{}, room: 1 << 20}
	j, _, err := open(memDir, d, smallLimits(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	var told []error
	j.OnWriteError(func(err error) { told = append(told, err) })
	running, waiting := startOp("running", 0), startOp("waiting", 0)
	receive(t, j, running, waiting)
	if err := j.Execute(running.ID, Exec{BootID: "b"}); err != nil {
		t.Fatal(err)
	}

	d.room = d.used()
	refused := func(task string) {
		t.Helper()
		v := receive(t, j, startOp(task, 0))
		if r := v[0].Refused; r == nil || r.Code != agentproto.CodeAgentAbnormal ||
			!strings.HasPrefix(r.Message, "start: journal unavailable: no space") {
			t.Fatalf("%s: %+v", task, v[0])
		}
	}
	refused("new")
	if err := j.Execute(waiting.ID, Exec{BootID: "b"}); err == nil {
		t.Error("a command may begin although nobody would remember it")
	}
	if d.memDisk[filepath.Join(memDir, reserveName)] == nil {
		t.Fatal("the room was given away for something new")
	}
	// An operation that has begun ends, and its result is available later.
	if err := j.Execute(running.ID, Exec{BootID: "b", PID: 7}); err != nil {
		t.Errorf("spawned: %v", err)
	}
	if err := j.SaveProcess("k", json.RawMessage(`{"desired":"down"}`)); err != nil {
		t.Errorf("process: %v", err)
	}
	finish(t, j, running.ID)
	finish(t, j, waiting.ID)
	refused("newer")
	if err := j.Ready(); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("ready: %v", err)
	}
	if len(told) != 1 || told[0] == nil {
		t.Fatalf("trouble was told as %v", told)
	}

	found := &smallDisk{memDisk: d.clone(), room: d.room}
	later, r, err := open(memDir, found, smallLimits(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Open) != 0 || len(r.Unacknowledged) != 2 || len(r.Processes) != 1 {
		t.Errorf("after a crash: %+v", r)
	}
	mustClose(t, later)

	d.room = 1 << 20
	if v := receive(t, j, startOp("now", 0)); v[0] != (Admission{}) {
		t.Errorf("there is room again: %+v", v[0].Refused)
	}
	if len(told) != 2 || told[1] != nil {
		t.Errorf("trouble was told as %v", told)
	}
	if f := d.memDisk[filepath.Join(memDir, reserveName)]; f == nil || len(f.data) != 10_000 {
		t.Error("no room is set aside for the next time")
	}
	if err := j.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	mustClose(t, j)
}

func TestFullDiskAtTheStartTakesNothingNew(t *testing.T) {
	t.Parallel()
	d := &smallDisk{memDisk: memDisk{}, room: 5_000}
	j, _, err := open(memDir, d, smallLimits(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	look := startOp("look", 0)
	look.Action = agentproto.ActionStatus
	v := receive(t, j, startOp("new", 0), look)
	if v[0].Refused == nil || v[0].Refused.Code != agentproto.CodeAgentAbnormal {
		t.Errorf("start: %+v", v[0])
	}
	if v[1] != (Admission{}) {
		t.Errorf("status: %+v", v[1])
	}
	d.room = 1 << 20
	if err := j.Ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	if v := receive(t, j, startOp("new", 1)); v[0] != (Admission{}) {
		t.Errorf("there is room: %+v", v[0].Refused)
	}
	mustClose(t, j)
}

func TestFullDiskAtEveryByte(t *testing.T) {
	t.Parallel()
	for room := 10_000; room < 16_000; room += 13 * sparse {
		d := &smallDisk{memDisk: memDisk{}, room: room}
		j, _, err := open(memDir, d, smallLimits(), quiet())
		if err != nil {
			continue // not even an empty journal fits
		}
		accepted, finished := map[ID]bool{}, map[ID]bool{}
		for i := range 8 {
			op := startOp("t", i)
			if v := receive(t, j, op); v[0].Refused != nil {
				continue
			}
			accepted[op.ID] = true
			_ = j.Execute(op.ID, Exec{BootID: "b"}) // the engine ends it with 117 then
			if err := j.Finish(op.ID, success(i)); err != nil {
				t.Fatalf("room for %d: what was accepted cannot end: %v", room, err)
			}
			finished[op.ID] = true
		}
		mustClose(t, j)
		later, r, err := open(memDir, d, smallLimits(), quiet())
		if err != nil {
			t.Fatalf("room for %d: %v", room, err)
		}
		if len(r.Open) != 0 || len(r.Unacknowledged) != len(finished) {
			t.Fatalf("room for %d: %d accepted, %d finished; later %d open, %d finished",
				room, len(accepted), len(finished), len(r.Open), len(r.Unacknowledged))
		}
		mustClose(t, later)
	}
}
