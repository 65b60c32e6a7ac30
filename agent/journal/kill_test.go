package journal

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/crashpoint"
)

// killedFolder is the environment variable that makes the test binary a writer. Until it is killed, it
// prints the records that the journal reported as durable.
const killedFolder = "JOURNAL_TEST_WRITE_UNTIL_KILLED"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedFolder); dir != "" {
		writeUntilKilled(dir)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func writeUntilKilled(dir string) {
	small := defaultLimits()
	small.rotateBytes = 64 << 10                   // be killed in rotations too
	small.retainOps, small.retainFences = 100, 200 // and while forgetting
	j, _, err := open(dir, osDisk{}, small, quiet())
	if err != nil {
		fmt.Println("error", err)
		return
	}
	j.OnCrash(crashpoint.FromEnv())
	var out sync.Mutex
	report := func(what string, id ID) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(what, id.Task, id.Item)
	}
	var writers sync.WaitGroup
	var next atomic.Int64
	for range 4 {
		writers.Go(func() {
			// The parent kills long before; the bound keeps a forgotten writer
			// from filling the disk.
			for i := int(next.Add(1)); i < 400_000; i = int(next.Add(1)) {
				op := written(i)
				if _, err := j.Receive([]Op{op}); err != nil {
					return
				}
				report("received", op.ID)
				if i%3 == 0 {
					continue
				}
				if j.Finish(op.ID, success(i)) != nil {
					return
				}
				report("finished", op.ID)
				if i%3 == 1 && j.Acknowledge([]ID{op.ID}) != nil {
					return
				}
			}
		})
	}
	writers.Wait()
	fmt.Println("error: the writer ended by itself")
}

// written returns the n-th operation of a writer.
func written(n int) Op {
	op := startOp("w", n)
	op.Fence = int64(n)
	return op
}

func TestKilledWriterLosesNothingThatWasDurable(t *testing.T) {
	t.Parallel()
	for round := range 4 {
		outliveKill(t, 400+300*round, "")
	}
}

// TestWriterKilledInTheMiddleOfAGeneration kills a writer at each step of beginning a generation, for the
// first and for a later generation.
func TestWriterKilledInTheMiddleOfAGeneration(t *testing.T) {
	t.Parallel()
	for _, point := range []string{CrashNewLog, CrashSnapshot, CrashNewSnapshot, CrashBeforePruned} {
		for _, nth := range []string{"", ":3"} {
			t.Run(point+nth, func(t *testing.T) {
				t.Parallel()
				outliveKill(t, 1<<30, point+nth)
			})
		}
	}
}

// outliveKill kills a writer after a number of steps or at a point, and verifies that the journal
// contains every record that the writer reported as durable.
func outliveKill(t *testing.T, steps int, point string) {
	t.Helper()
	dir := t.TempDir()
	received, finished := writeAndKill(t, dir, steps, point)
	j, r, err := Open(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, j)
	if r.Damage != nil {
		t.Errorf("a kill is no damage: %+v", r.Damage)
	}
	for id := range received {
		result, open, known := j.Result(id)
		mayBeForgotten := finished[id] && id.Item%3 == 1 // it may be acknowledged
		switch {
		case !known && mayBeForgotten:
		case !known:
			t.Fatalf("%v was received and is lost", id)
		case finished[id] && (open || result.Message != "success"):
			t.Fatalf("%v was finished; now open %v, result %+v", id, open, result)
		}
	}
	if len(r.Open) < len(received)/4 {
		t.Fatalf("only %d open operations", len(r.Open))
	}
	for id := range received {
		if v := receive(t, j, written(id.Item)); v[0] == (Admission{}) {
			t.Fatalf("%v would be executed again", id)
		}
	}
	if v := receive(t, j, written(1<<30)); v[0] != (Admission{}) {
		t.Errorf("it takes nothing more: %+v", v[0].Refused)
	}
}

// writeAndKill runs a writer, which dies at the point or is killed after it has reported the given
// number of durable steps. It returns the reported steps.
func writeAndKill(t *testing.T, dir string, steps int, point string) (received, finished map[ID]bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	writer := exec.Command(self)
	writer.Env = append(os.Environ(), killedFolder+"="+dir, crashpoint.Variable+"="+point)
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	received, finished = map[ID]bool{}, map[ID]bool{}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if n == steps {
			if err := writer.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		var what string
		var id ID
		if _, err := fmt.Sscan(lines.Text(), &what, &id.Task, &id.Item); err != nil {
			if strings.HasPrefix(lines.Text(), "error") {
				t.Fatal(lines.Text())
			}
			continue // the last line may be torn
		}
		received[id] = true
		if what == "finished" {
			finished[id] = true
		}
	}
	if err := writer.Wait(); err == nil {
		t.Fatal("the writer ended by itself")
	}
	if point == "" && len(received) < steps/4 || len(received) == 0 {
		t.Fatalf("the writer reported only %d operations", len(received))
	}
	return received, finished
}

func TestHugeContentIsRefusedAlone(t *testing.T) {
	t.Parallel()
	j, _ := mustOpen(t, t.TempDir())
	huge := startOp("huge", 0)
	huge.Spec.StartCmd = strings.Repeat("x", maxRecord)
	v := receive(t, j, huge, startOp("small", 0))
	if v[0].Refused == nil || v[0].Refused.Code != agentproto.CodeFailed {
		t.Errorf("huge: %+v", v[0])
	}
	if v[1] != (Admission{}) {
		t.Errorf("small: %+v", v[1])
	}
}
