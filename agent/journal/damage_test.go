package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// history is a journal as an agent leaves it, and the calls that wrote it.
type history struct {
	disk   memDisk
	ops    map[ID]Op
	begun  map[ID]bool // their commands may have run
	states map[string][]string
}

const memDir = "/journal"

// newHistory returns a history with operations in every state, in a snapshot and in logs.
func newHistory(tb testing.TB) *history {
	tb.Helper()
	tb.Helper()
	h := &history{disk: memDisk{}, ops: map[ID]Op{}, begun: map[ID]bool{}, states: map[string][]string{}}
	j, _, err := open(memDir, h.disk, memLimits(), quiet())
	if err != nil {
		tb.Fatal(err)
	}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	fence := int64(0)
	walk := func(n, steps int) {
		fence++
		op := startOp("t", n)
		op.Fence = fence
		h.ops[op.ID] = op
		if v := receive(tb, j, op); v[0] != (Admission{}) {
			tb.Fatalf("%+v", v[0])
		}
		for step, do := range []func() error{
			func() error { h.begun[op.ID] = true; return j.Execute(op.ID, Exec{BootID: "b", At: op.AcceptedAt}) },
			func() error { return j.Execute(op.ID, Exec{BootID: "b", At: op.AcceptedAt, PID: 77, Start: 88}) },
			func() error { return j.Finish(op.ID, success(n)) },
			func() error { return j.Acknowledge([]ID{op.ID}) },
		} {
			if step < steps {
				must(do())
			}
		}
		state := fmt.Sprintf(`{"spec":{"n":%d}}`, n)
		must(j.SaveProcess(op.Spec.Key, json.RawMessage(state)))
		h.states[op.Spec.Key] = append(h.states[op.Spec.Key], state)
	}
	for round := range 2 {
		for steps := range 5 {
			walk(round*10+steps, steps)
		}
		must(j.SaveProcess("t/1", nil))
		if round == 0 {
			j.mu.Lock()
			must(j.rotate())
			j.mu.Unlock()
		}
	}
	must(j.Close())
	return h
}

// check opens the journal on a disk and compares it with the calls that wrote it. It must contain only
// written operations, and no operation that had begun may begin again. mayForget permits missing
// operations.
func (h *history) check(d memDisk, mayForget bool) (r Recovered, err error) {
	j, r, err := open(memDir, d, memLimits(), quiet())
	if err != nil {
		return r, err
	}
	defer func() { _ = j.Close() }()
	for _, open := range r.Open {
		want, known := h.ops[open.ID]
		if diff := cmp.Diff(want, open.Op); !known || diff != "" {
			return r, fmt.Errorf("%v was never received like this: %s", open.ID, diff)
		}
		if h.begun[open.ID] && !open.Executing {
			return r, fmt.Errorf("%v would be executed again", open.ID)
		}
	}
	for key, state := range r.Processes {
		if !slices.Contains(h.states[key], string(state)) {
			return r, fmt.Errorf("process %s has the invented state %s", key, state)
		}
	}
	for id, op := range h.ops {
		v, err := j.Receive([]Op{op})
		if err != nil {
			return r, err
		}
		if h.begun[id] && v[0] == (Admission{}) && !mayForget {
			return r, fmt.Errorf("%v is taken for new and would be executed again", id)
		}
		if result := v[0].Result; result != nil && result.Code == 0 && result.Message != "success" {
			return r, fmt.Errorf("%v has the invented result %+v", id, result)
		}
	}
	// The journal must accept a new operation, and store it durably.
	next := startOp("next", 0)
	next.Fence = 1 << 40
	if v, err := j.Receive([]Op{next}); err != nil || v[0] != (Admission{}) {
		return r, fmt.Errorf("opened, but takes nothing new: %+v, %w", v, err)
	}
	again, later, err := open(memDir, d.clone(), memLimits(), quiet())
	if err != nil {
		return r, fmt.Errorf("opened once more: %w", err)
	}
	defer func() { _ = again.Close() }()
	if n := len(later.Open); n == 0 || later.Open[n-1].ID != next.ID {
		return r, fmt.Errorf("%v was forgotten", next.ID)
	}
	for _, open := range later.Open {
		was := slices.ContainsFunc(r.Open, func(o OpenOp) bool { return o.ID == open.ID })
		if h.begun[open.ID] && !open.Executing && was {
			return r, fmt.Errorf("%v would be executed by the agent after next", open.ID)
		}
	}
	switch {
	case (r.Damage == nil) != (later.Damage == nil):
		return r, fmt.Errorf("damage %+v is %+v later", r.Damage, later.Damage)
	case r.Damage != nil && (r.Damage.ID != later.Damage.ID || later.Damage.Found):
		return r, fmt.Errorf("damage %+v is %+v later", r.Damage, later.Damage)
	}
	return r, nil
}

func TestHistoryIsSoundWithoutDamage(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	r, err := h.check(h.disk.clone(), false)
	if err != nil || r.Damage != nil {
		t.Fatalf("%+v, %v", r.Damage, err)
	}
	if len(r.Open) != 6 || len(r.Unacknowledged) != 2 || len(r.Processes) != 9 {
		t.Errorf("%d open, %d unacknowledged, %d processes", len(r.Open), len(r.Unacknowledged), len(r.Processes))
	}
	if len(h.disk) != 3 {
		t.Errorf("files: %v", h.disk)
	}
}

func TestEveryFileTornAtEveryOffset(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	for name, f := range h.disk {
		frames := framesOf(t, f.data)
		for cut := range f.data {
			if !isNewestLog(name) && cut%11 != 0 {
				continue // only the newest log is ever written to
			}
			if cut%sparse != 0 && !slices.Contains(frames, cut) {
				continue
			}
			d := h.disk.clone()
			d[name].data = d[name].data[:cut]
			h := h
			if slices.Contains(frames, cut) { // nothing is torn, and nothing shows what there was
				h = &history{ops: h.ops, states: h.states}
			}
			// A truncated file looks complete, so only the remaining operations can be
			// compared.
			if _, err := h.check(d, true); err != nil {
				t.Fatalf("%s cut at %d: %v", filepath.Base(name), cut, err)
			}
		}
	}
}

func everyFlippedBit(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	for name, f := range h.disk {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			frames, damaged := framesOf(t, f.data), 0
			bits := 0
			for bit := range len(f.data) * 8 {
				// In the current log, test every bit of the frames and of the first fields of the records,
				// and every ninth of the other bits, which one checksum protects.
				if !nearFrame(frames, bit/8) && bit%9 != 0 || !isNewestLog(name) && bit%5 != 0 || bit%sparse != 0 {
					continue
				}
				bits++
				d := h.disk.clone()
				d[name].data[bit/8] ^= 1 << (bit % 8)
				r, err := h.check(d, false)
				if err != nil {
					t.Fatalf("bit %d of byte %d: %v", bit%8, bit/8, err)
				}
				if r.Damage != nil {
					damaged++
				}
			}
			t.Logf("%d of %d flipped bits were damage", damaged, bits)
			newest := isNewestLog(name)
			if newest && damaged < bits*3/4 || !newest && damaged > 0 {
				t.Errorf("damage of what the newest generation holds must be told, other damage must do no harm")
			}
		})
	}
}

// framesOf returns where the records of a file begin.
func framesOf(t *testing.T, data []byte) (offsets []int) {
	t.Helper()
	_, err := scan(bytes.NewReader(data), func(_ *record, off int64, _ int) error {
		offsets = append(offsets, int(off)-frameHeader)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return offsets
}

func isNewestLog(name string) bool { return strings.HasSuffix(name, "log-000002") }

func nearFrame(frames []int, off int) bool {
	return slices.ContainsFunc(frames, func(begin int) bool { return off >= begin && off < begin+frameHeader+8 })
}

func testSeveralDamagedPlaces(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	names, err := h.disk.List("")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 200 / sparse {
		seed := n * sparse
		d := h.disk.clone()
		for _, name := range names {
			data := d[filepath.Join(memDir, name)].data
			for hit := range 1 + seed%3 {
				at := (seed*7919 + hit*104729) % len(data)
				for i := at; i < min(at+1+seed%40, len(data)); i++ {
					data[i] = 0
				}
			}
		}
		// Of an operation everything may be lost at once.
		if _, err := h.check(d, true); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestDamagedFilesAreSetAsideAndSaidOnce(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	d := h.disk.clone()
	log := d[filepath.Join(memDir, "log-000002")]
	log.data[len(log.data)/2] ^= 1
	harmed := string(log.data)
	r, err := h.check(d, false)
	if err != nil {
		t.Fatal(err)
	}
	if r.Damage == nil || !r.Damage.Found || !strings.Contains(r.Damage.Detail, "log-000002") {
		t.Fatalf("damage %+v", r.Damage)
	}
	kept, ok := d[filepath.Join(memDir, badPrefix+r.Damage.ID+"-log-000002")]
	if !ok || string(kept.data) != harmed {
		t.Error("the damaged file was not kept as it was")
	}
}

func TestNothingButGarbageIsNoJournal(t *testing.T) {
	t.Parallel()
	d := memDisk{filepath.Join(memDir, "log-000001"): {data: []byte(strings.Repeat("garbage ", 100))}}
	before := d.clone()
	if _, _, err := open(memDir, d, memLimits(), quiet()); !errors.Is(err, ErrDamaged) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(before, d, cmp.AllowUnexported(memFile{})); diff != "" {
		t.Errorf("files were changed: %s", diff)
	}
}

func FuzzOpen(f *testing.F) {
	payload, err := encodeRecord(&record{Group: 7, Head: &head{Format: format, Generation: 1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(appendFrame(nil, payload))
	f.Add(appendFrame(appendFrame(nil, payload), []byte(`{"n":8,"acked":[{"task":"t","item":1}]}`)))
	for _, file := range newHistory(f).disk {
		f.Add(file.data)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(memDir, "log-000001")
		d := memDisk{name: {data: slices.Clone(data)}}
		j, r, err := open(memDir, d, memLimits(), quiet())
		if err != nil {
			if string(d[name].data) != string(data) {
				t.Fatal("refused, but changed the file")
			}
			return
		}
		defer func() { _ = j.Close() }()
		op := startOp("new", 0)
		op.Fence = 1<<63 - 1
		v, err := j.Receive([]Op{op})
		if err != nil || v[0].Refused != nil && r.Damage == nil {
			t.Fatalf("opened, but takes nothing: %+v, %v", v, err)
		}
		if _, _, err := open(memDir, d.clone(), memLimits(), quiet()); err != nil {
			t.Fatalf("opened once more: %v", err)
		}
	})
}
