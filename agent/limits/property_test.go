package limits

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// since contains the number of readings of a process since its latest disturbance.
type since struct {
	main     Process
	readings int
	overCPU  int // latest readings in a row over its limits
	overMem  int
}

// watch verifies the breaches of a judge after each reading.
type watch struct {
	h        *host
	seen     map[string]*since
	acted    time.Duration // end of the latest take-down
	underway bool
}

// note counts the readings of the trees independently of the judge.
func (w *watch) note(disturbed bool) {
	for _, tr := range w.h.trees {
		s := w.seen[tr.Key]
		if s == nil || s.main != tr.Main || disturbed {
			s = &since{main: tr.Main}
			w.seen[tr.Key] = s
		}
		if tr.Age < rules.ArmAfter {
			*s = since{main: tr.Main}
			continue
		}
		s.readings++
		s.overCPU, s.overMem = s.overCPU+1, s.overMem+1
		if tr.CPU <= tr.CPULimit {
			s.overCPU = 0
		}
		if tr.Memory <= tr.MemoryLimit {
			s.overMem = 0
		}
	}
}

func (w *watch) check(t *rapid.T, b Breach) {
	if w.underway {
		t.Fatalf("%+v while a take-down is under way", b)
	}
	if w.acted > 0 && w.h.at < w.acted+rules.Spacing {
		t.Fatalf("%+v only %v after the take-down before", b, w.h.at-w.acted)
	}
	if b.Value <= b.Limit {
		t.Fatalf("%+v is not over the limit", b)
	}
	victim := w.tree(b.Key)
	switch {
	case victim == nil || victim.Main != b.Main:
		t.Fatalf("%+v is about a process that there is not", b)
	case victim.Deferred:
		t.Fatalf("%+v is about a process that has to be left alone", b)
	case victim.Age < rules.ArmAfter:
		t.Fatalf("%+v is about a process that warms up", b)
	}
	if b.Pool != nil {
		w.checkMembers(t, b)
		return
	}
	s := w.seen[b.Key]
	if b.Metric == Memory && s.overMem < 3 {
		t.Fatalf("%+v after %d readings over the limit", b, s.overMem)
	}
	if b.Metric == CPU && (s.overCPU < 1 || s.readings < 13) {
		t.Fatalf("%+v after %d readings, the last %d over the limit", b, s.readings, s.overCPU)
	}
}

func (w *watch) checkMembers(t *rapid.T, b Breach) {
	var total, best float64
	for _, m := range b.Members {
		total += m.Usage
	}
	for _, m := range b.Members {
		if m.Usage >= minorPart*total {
			best = max(best, m.Score)
		}
		if tr := w.tree(m.Key); tr == nil || tr.Namespace != b.Pool.Namespace {
			t.Fatalf("%s is no member of %+v", m.Key, b)
		}
	}
	if first := b.Members[0]; first.Key != b.Key || !first.Minor && first.Score != best {
		t.Fatalf("%+v does not take the highest score, %v", b, best)
	}
}

func (w *watch) tree(key string) *Tree {
	for i, tr := range w.h.trees {
		if tr.Key == key {
			return &w.h.trees[i]
		}
	}
	return nil
}

func TestNothingIsFoundWithoutReason(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h := newHost(t)
		for _, key := range []string{"a", "b", "c"} {
			tr := tree(key, 0, 0).limits(rapid.Float64Range(0, 120).Draw(rt, "cpu limit"), rapid.Float64Range(0, 120).Draw(rt, "memory limit"))
			tr.Namespace = rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "namespace")
			h.trees = append(h.trees, tr)
		}
		h.pools = []Pool{{
			Namespace: "x", CPULimit: rapid.Float64Range(0, 120).Draw(rt, "pool"), MemoryLimit: rapid.Float64Range(0, 120).Draw(rt, "pool"),
			MemoryByLimit: rapid.Bool().Draw(rt, "by limit"),
		}}
		w := &watch{h: h, seen: map[string]*since{}}
		var open Breach
		for range rapid.IntRange(1, 120).Draw(rt, "readings") {
			disturbed := rapid.IntRange(0, 30).Draw(rt, "disturb") == 0
			if disturbed {
				h.at += 4 * period
			}
			if which := rapid.IntRange(0, 40).Draw(rt, "restart"); which < len(h.trees) {
				h.trees[which].Main.Start++
				h.trees[which].Age = 0
			}
			for i := range h.trees {
				h.trees[i].CPU = rapid.Float64Range(0, 100).Draw(rt, "cpu")
				h.trees[i].Memory = rapid.Float64Range(0, 100).Draw(rt, "memory")
				h.trees[i].Deferred = rapid.IntRange(0, 3).Draw(rt, "deferred") == 0
			}
			b, found := h.read(period)
			w.note(disturbed)
			if found {
				w.check(rt, b)
				if rapid.Bool().Draw(rt, "act") {
					h.judge.Begin()
					open, w.underway = b, true
				}
			} else if w.underway && rapid.Bool().Draw(rt, "end") {
				done := rapid.Bool().Draw(rt, "done")
				h.judge.End(open, h.at, done)
				w.underway = false
				if done {
					w.acted = h.at
				}
			}
		}
	})
}

func TestSteadyExcessIsAlwaysFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.Float64Range(0.5, 99).Draw(rt, "limit")
		usage := rapid.Float64Range(limit*1.001, 100).Draw(rt, "usage")
		metric := rapid.SampledFrom([]Metric{CPU, Memory}).Draw(rt, "metric")
		tr := tree("a", usage, 0).limits(limit, 0)
		want := 13
		if metric == Memory {
			tr, want = tree("a", 0, usage).limits(0, limit), 3
		}
		h := newHost(t, tr)
		if _, n := h.until(); n != want {
			rt.Fatalf("%v of %v percent %s is found with reading %d, want %d", usage, limit, metric, n, want)
		}
		h = newHost(t, tree("a", limit, limit).limits(limit, limit))
		if b, n := h.until(); n != 0 {
			rt.Fatalf("exactly the limit is found: %+v", b)
		}
	})
}
