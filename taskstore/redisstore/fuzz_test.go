package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/internal/pack"
)

// Reads of keys with arbitrary contents return a value or an error, and do not panic.

const fuzzTask procfleet.TaskID = "GSETASK:20261121053522:123456"

// fuzzHead is a head as [layoutFields] has it, its values separated by lines.
const fuzzHead = "running\ns\n2\n1\n1790000000000000\n1790000060000000\n1790604800000000\n\n1\n0\n\n\n" +
	`1` + "\n" + `1790000010000000 {"k":"operator"}` + "\n\n1\n\n" +
	`{"s":0,"p":"baking","t":"1790000010000000","w":2,"f":-1,"r":2,"a":0,"x":0,"h":"budget","ht":"1790000010000000","m":"0","c":"fF"}` + "\n" +
	`{"a":["start"],"d":"native","o":{},"g":{"w":2,"f":-1,"c":["failed"],"s":[{"u":2,"c":1}],"t":60000000000}}`

// headValues returns the values as the server replies them: a missing field is nil.
func headValues(text string) []any {
	values := make([]any, len(layoutFields()))
	for i, line := range strings.SplitN(text, "\n", len(values)) {
		if line != "" {
			values[i] = line
		}
	}
	return values
}

func fuzzChunk(tb testing.TB) []byte {
	tb.Helper()
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		tb.Fatal(err)
	}
	item := procfleet.Item{Action: procfleet.ActionStart, Target: procfleet.Target{Host: host}}
	packed, err := pack.Chunk(&procfleet.Chunk{Specs: []procfleet.ProcessSpec{procfleet.DefaultSpec()}, Items: []procfleet.Item{item, item}})
	if err != nil {
		tb.Fatal(err)
	}
	return packed
}

func TestAPageOfAnItemThatItsChunkHasNotIsAnError(t *testing.T) {
	t.Parallel()
	view, err := pack.OpenChunk(string(fuzzChunk(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range []int{-1, 2, 1 << 40} {
		if _, err := row(&procfleet.Task{}, view, item, 'p', ""); err == nil {
			t.Errorf("item %d is read", item)
		}
	}
}

func TestAPresenceWithALengthBelowZeroIsAnError(t *testing.T) {
	t.Parallel()
	head := "1790000000000000" + "1600000000000000" + "abcdefghijklmnop" + "0000000000000000" + "0"
	for _, length := range []string{"-0001", "-9999", "99999"} {
		if p, err := readEntry(procfleet.Host{}, head+length+"id", time.UnixMicro(1)); err == nil {
			t.Errorf("length %s is read as %+v", length, p)
		}
	}
}

// FuzzReadTask reads a page of a task: its head, the directory in it, a chunk
// and a result, each of which may be of another task or of none.
func FuzzReadTask(f *testing.F) {
	stored := string(stored(&procfleet.Result{Reason: procfleet.ReasonSucceeded}))
	counters := strings.Repeat("\n0", len(procfleet.States()))
	f.Add(fuzzHead+counters+"\n0000000000000002", string(fuzzChunk(f)), stored, byte('S'), 1)
	f.Add(fuzzHead+counters+"\n0000000000000002", string(fuzzChunk(f)), stored, byte('p'), 0)
	f.Fuzz(func(t *testing.T, head, chunk, result string, mark byte, item int) {
		l, err := readLayout(fuzzTask, headValues(head))
		if err != nil {
			return
		}
		view, err := pack.OpenChunk(chunk)
		if err != nil || item < 0 {
			return
		}
		if n := l.chunkOf(item); n >= len(l.firsts) {
			t.Fatalf("item %d is in chunk %d of %d", item, n, len(l.firsts))
		}
		r, err := row(&l.task, view, item, pack.Mark(mark), result)
		if err == nil && (r.Spec == nil || r.Index != item) {
			t.Errorf("item %d is read as %+v", item, r)
		}
	})
}

func FuzzReadItemCancels(f *testing.F) {
	f.Add("1 1790000000000000 0,255 {\"m\":\"drain\",\"r\":\"wrong version\"}\n2 1790000001000000 3 {\"m\":\"interrupt\"}\n")
	f.Fuzz(func(t *testing.T, text string) {
		cancels, err := readItemCancels(text)
		if err == nil && len(cancels) != strings.Count(strings.TrimSuffix(text, "\n")+"\n", "\n") && text != "" {
			t.Errorf("%q is read as %+v", text, cancels)
		}
	})
}

func FuzzReadTransition(f *testing.F) {
	f.Add(`{"k":"held","t":"1790000000000000","q":2,"g":1,"h":"budget","r":"why"}`)
	f.Add(`{"k":"cancelled","t":"x","q":1,"c":"drain"}`)
	f.Fuzz(func(t *testing.T, text string) {
		n, err := readTransition(text)
		if err == nil && n.At.Nanosecond()%1000 != 0 {
			t.Errorf("%q is read as %+v", text, n)
		}
	})
}

func FuzzReadPresence(f *testing.F) {
	now := time.UnixMicro(1_600_000_000_000_000)
	packed := string(packAnnouncement(&taskstore.Announcement{Instance: "i", Version: "v", OS: "linux", Arch: "amd64", StartedAt: now}))
	moments := "1790000000000000" + "1600000000000000" + "abcdefghijklmnop" + "0000000000000000"
	f.Add(moments + "0" + "00002" + "id" + packed)
	f.Add("1500000000000000" + moments[redisconn.StampWidth:] + "0" + "00000" + packed) // of an agent that is gone
	f.Add(moments + "1" + "ponmlkjihgfedcba" + "1790000000000000" + "00000" + packed)
	host, err := procfleet.ParseHost("0:10.0.0.1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		p, err := readPresence(host, entry, now)
		if err != nil || p.Host.IsZero() {
			return
		}
		if p.Host != host || !p.SeenAt.After(now.Add(-taskstore.PresenceTTL)) || !strings.Contains(entry, p.AgentID) {
			t.Errorf("%q is read as %+v", entry, p)
		}
	})
}
