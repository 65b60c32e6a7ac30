package dispatcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

func host(t interface{ Fatal(...any) }, text string) procfleet.Host {
	h, err := procfleet.ParseHost(text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func spec(name string) procfleet.ProcessSpec {
	s := procfleet.DefaultSpec()
	s.Namespace, s.Name, s.ProcName = "ns", name, "p"
	return s
}

func mustCut(t interface{ Fatal(...any) }, ops []procfleet.Operation) *plan {
	p, err := cut(ops, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// operations draws requests that name few hosts and processes, and so name
// the same ones often.
func operations(t *rapid.T) []procfleet.Operation {
	target := rapid.Custom(func(t *rapid.T) procfleet.Target {
		if rapid.IntRange(0, 9).Draw(t, "known") == 0 {
			id := fmt.Sprintf("agent-%d", rapid.IntRange(0, 3).Draw(t, "agent"))
			return procfleet.Target{AgentID: id, Label: id}
		}
		cloud, ip := rapid.IntRange(0, 2).Draw(t, "cloud"), rapid.IntRange(1, 200).Draw(t, "ip")
		return procfleet.Target{Host: host(t, fmt.Sprintf("%d:10.0.0.%d", cloud, ip))}
	})
	operation := rapid.Custom(func(t *rapid.T) procfleet.Operation {
		return procfleet.Operation{
			Action:  rapid.SampledFrom(procfleet.Actions()).Draw(t, "action"),
			Process: spec(fmt.Sprintf("proc-%d", rapid.IntRange(0, 5).Draw(t, "process"))),
			Targets: rapid.SliceOfN(target, 1, 300).Draw(t, "targets"),
		}
	})
	return rapid.SliceOfN(operation, 1, 8).Draw(t, "operations")
}

// process is one process on one host.
type process struct {
	target procfleet.Target
	key    string
}

func TestCutKeepsEveryItemAndEveryOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ops := operations(t)
		want := make(map[process][]procfleet.Action)
		for _, o := range ops {
			named := make(map[procfleet.Target]bool)
			for _, target := range o.Targets {
				if !named[target] {
					named[target] = true
					p := process{target, o.Process.Key()}
					want[p] = append(want[p], o.Action)
				}
			}
		}
		p := mustCut(t, ops)
		got := make(map[process][]procfleet.Action)
		in := make(map[process]int)
		next := 0
		for n := range p.chunks {
			chunk := &p.chunks[n]
			if chunk.First != next {
				t.Fatalf("chunk %d begins with item %d, want %d", n, chunk.First, next)
			}
			next += len(chunk.Items)
			for i, it := range chunk.Items {
				key := process{it.Target, chunk.Spec(i).Key()}
				if first, again := in[key]; again && first != n {
					t.Fatalf("%v is in chunks %d and %d", key, first, n)
				}
				in[key] = n
				got[key] = append(got[key], it.Action)
			}
			checkChunk(t, chunk)
		}
		if p.items != next {
			t.Fatalf("%d items, but %d in chunks", p.items, next)
		}
		if len(got) != len(want) {
			t.Fatalf("%d processes on hosts, want %d", len(got), len(want))
		}
		for key, actions := range want {
			if !slices.Equal(got[key], actions) {
				t.Fatalf("%v: actions %v, want %v", key, got[key], actions)
			}
		}
	})
}

func checkChunk(t *rapid.T, chunk *procfleet.Chunk) {
	if len(chunk.Items) > procfleet.ChunkItems {
		t.Fatalf("a chunk of %d items", len(chunk.Items))
	}
	specs := make(map[string]bool)
	for i := range chunk.Specs {
		text, err := json.Marshal(chunk.Specs[i])
		if err != nil {
			t.Fatal(err)
		}
		if specs[string(text)] {
			t.Fatalf("the chunk has spec %s twice", chunk.Specs[i].Key())
		}
		specs[string(text)] = true
	}
	nowhere := chunk.Items[0].Target.Host.IsZero()
	for _, it := range chunk.Items {
		if it.Target.Host.IsZero() != nowhere {
			t.Fatal("a chunk mixes items with and without a host")
		}
		if it.Target.Host.Cloud != chunk.Cloud {
			t.Fatalf("host %s is in a chunk of cloud area %d", it.Target.Host, chunk.Cloud)
		}
	}
}

func TestCutFillsChunks(t *testing.T) {
	t.Parallel()
	o := procfleet.Operation{Action: procfleet.ActionStatus, Process: spec("one")}
	for i := range 10_000 {
		o.Targets = append(o.Targets, procfleet.Target{Host: host(t, fmt.Sprintf("0:10.0.%d.%d", i>>8, i&255))})
	}
	p := mustCut(t, []procfleet.Operation{o})
	if want := (10_000 + procfleet.ChunkItems - 1) / procfleet.ChunkItems; len(p.chunks) != want {
		t.Errorf("%d chunks, want %d", len(p.chunks), want)
	}
}

func TestCutKeepsMoreItemsOfOneProcessTogetherThanAChunkHas(t *testing.T) {
	t.Parallel()
	var ops []procfleet.Operation
	for range procfleet.ChunkItems + 50 {
		ops = append(ops, procfleet.Operation{
			Action: procfleet.ActionRestart, Process: spec("one"), Targets: []procfleet.Target{{Host: host(t, "0:10.0.0.1")}},
		})
	}
	p := mustCut(t, ops)
	if len(p.chunks) != 1 || len(p.chunks[0].Items) != len(ops) || len(p.chunks[0].Specs) != 1 {
		t.Errorf("%d chunks, the first with %d items and %d specs", len(p.chunks), len(p.chunks[0].Items), len(p.chunks[0].Specs))
	}
}

func TestCutBoundsTheBytesOfAChunk(t *testing.T) {
	t.Parallel()
	var ops []procfleet.Operation
	for i := range 40 {
		s := spec(fmt.Sprintf("proc-%d", i))
		s.Control.Start = strings.Repeat("x", procfleet.MaxCommand)
		ops = append(ops, procfleet.Operation{
			Action: procfleet.ActionStart, Process: s, Targets: []procfleet.Target{{Host: host(t, "0:10.0.0.1")}},
		})
	}
	for n, chunk := range mustCut(t, ops).chunks {
		size := 0
		for i := range chunk.Specs {
			size += len(chunk.Specs[i].Control.Start)
		}
		if size > chunkBytes {
			t.Errorf("chunk %d has %d bytes of commands", n, size)
		}
	}
	huge := spec("huge")
	huge.Control.Environment = map[string]string{"A": strings.Repeat("x", chunkBytes)}
	_, err := cut([]procfleet.Operation{{Action: procfleet.ActionStart, Process: huge, Targets: ops[0].Targets}}, nil)
	if f, ok := errors.AsType[*dialect.Error](err); !ok || f.Kind != dialect.TooLarge {
		t.Errorf("a spec above the size of a chunk: %v", err)
	}
}

func TestDeadlineFollowsTheBusiestHost(t *testing.T) {
	t.Parallel()
	one := spec("one")
	start, stop := one.Budget(procfleet.ActionStart), one.Budget(procfleet.ActionStop)
	on := func(action procfleet.Action, name, where string) procfleet.Operation {
		return procfleet.Operation{Action: action, Process: spec(name), Targets: []procfleet.Target{{Host: host(t, where)}}}
	}
	var crowd []procfleet.Operation
	for i := range 2 * hostCommands {
		crowd = append(crowd, on(procfleet.ActionStart, fmt.Sprintf("proc-%d", i), "0:10.0.0.1"))
	}
	for _, c := range []struct {
		name string
		ops  []procfleet.Operation
		want time.Duration
	}{
		{"one item", []procfleet.Operation{on(procfleet.ActionStart, "one", "0:10.0.0.1")}, start},
		{"other hosts do not add up", []procfleet.Operation{
			on(procfleet.ActionStart, "one", "0:10.0.0.1"), on(procfleet.ActionStop, "one", "0:10.0.0.2"),
		}, start},
		{"other processes run beside", []procfleet.Operation{
			on(procfleet.ActionStart, "one", "0:10.0.0.1"), on(procfleet.ActionStop, "two", "0:10.0.0.1"),
		}, start},
		{"one process adds up", []procfleet.Operation{
			on(procfleet.ActionStop, "one", "0:10.0.0.1"), on(procfleet.ActionStart, "one", "0:10.0.0.1"),
		}, stop + start},
		{"a crowd takes turns", crowd, 3 * start},
	} {
		if got := mustCut(t, c.ops).longest; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := timeout(0, time.Minute, time.Second); got != time.Minute+time.Second {
		t.Errorf("computed: %v", got)
	}
	if got := timeout(5*time.Second, time.Minute, time.Second); got != 5*time.Second {
		t.Errorf("the caller's own: %v", got)
	}
	if got := timeout(0, 365*24*time.Hour, time.Second); got != procfleet.MaxTimeout {
		t.Errorf("bounded: %v", got)
	}
}

func TestASmallRequestThatComesToVeryMuchIsRefused(t *testing.T) {
	t.Parallel()
	var many []procfleet.Target
	for i := range 2000 {
		many = append(many, procfleet.Target{Host: host(t, fmt.Sprintf("0:10.0.%d.%d", i/250, i%250))})
	}
	big := func(name string) procfleet.Operation {
		s := spec(name)
		s.Control.Start = strings.Repeat("x", 300<<10)
		return procfleet.Operation{Action: procfleet.ActionStart, Process: s, Targets: many}
	}
	var areas []procfleet.Target
	for i := range maxChunks + 1 {
		areas = append(areas, procfleet.Target{Host: host(t, fmt.Sprintf("%d:10.0.0.1", i))})
	}
	for want, operations := range map[string][]procfleet.Operation{
		"process specs are too big":                       {big("one"), big("two")},
		fmt.Sprintf("are in %d cloud areas", maxChunks+1): {{Action: procfleet.ActionStatus, Process: spec("p"), Targets: areas}},
	} {
		var large *dialect.Error
		if _, err := cut(operations, nil); !errors.As(err, &large) || !strings.Contains(large.Problem, want) {
			t.Errorf("%v, want an error that says %q", err, want)
		}
	}
	mustCut(t, []procfleet.Operation{big("one")})
	mustCut(t, []procfleet.Operation{{Action: procfleet.ActionStatus, Process: spec("p"), Targets: areas[1:]}})
}

func TestAChunkOfARolloutBelongsToOneStage(t *testing.T) {
	t.Parallel()
	var targets []procfleet.Target
	for i := range 600 {
		targets = append(targets, procfleet.Target{Host: host(t, fmt.Sprintf("%d:10.0.%d.%d", i%2, i/200, i%200+1))})
	}
	ops := []procfleet.Operation{
		{Action: procfleet.ActionStart, Process: spec("a"), Targets: targets},
		{Action: procfleet.ActionStart, Process: spec("b"), Targets: targets},
	}
	one, half := procfleet.Amount{}, procfleet.Amount{}
	for text, amount := range map[string]*procfleet.Amount{"1": &one, "50%": &half} {
		var err error
		if *amount, err = procfleet.ParseAmount(text); err != nil {
			t.Fatal(err)
		}
	}
	p, err := cut(ops, &groupedPolicy{RolloutPolicy: &procfleet.RolloutPolicy{Ramp: []procfleet.Amount{one, half}}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[procfleet.Host]bool{}
	chunk := 0
	for n, stage := range p.rollout.Stages {
		hosts := map[procfleet.Host]bool{}
		for ; chunk < stage.Chunks; chunk++ {
			for _, it := range p.chunks[chunk].Items {
				if it.Target.Host.Cloud != p.chunks[chunk].Cloud || seen[it.Target.Host] {
					t.Fatalf("chunk %d of stage %d has %s", chunk, n, it.Target.Host)
				}
				hosts[it.Target.Host] = true
			}
		}
		if len(hosts) != stage.Units || stage.Units != []int{1, 299, 300}[n] {
			t.Errorf("stage %d has %d hosts, says %d", n, len(hosts), stage.Units)
		}
		maps.Copy(seen, hosts)
	}
	if chunk != len(p.chunks) || len(seen) != 600 {
		t.Errorf("%d of %d chunks, %d hosts", chunk, len(p.chunks), len(seen))
	}
	mixed, err := cut(ops, &groupedPolicy{RolloutPolicy: &procfleet.RolloutPolicy{Shuffle: true}})
	if err != nil || mixed.items != p.items {
		t.Fatalf("%d items of %d: %v", mixed.items, p.items, err)
	}
	if first := mixed.chunks[0].Items; slices.IsSortedFunc(first, func(a, b procfleet.Item) int { return a.Target.Host.Addr.Compare(b.Target.Host.Addr) }) {
		t.Error("256 items of shuffled hosts are in order")
	}
	huge := slices.Repeat([]procfleet.Operation{ops[0]}, procfleet.ChunkItems+1)
	for i := range huge {
		huge[i].Process = spec(fmt.Sprint("p", i))
	}
	if _, err := cut(huge, &groupedPolicy{RolloutPolicy: &procfleet.RolloutPolicy{}}); failure(err).Kind != dialect.TooLarge {
		t.Errorf("more processes on a host than fit into a chunk: %v", err)
	}
}
