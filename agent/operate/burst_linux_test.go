package operate

import (
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// BenchmarkStatusBurst asks for 5,000 processes in one command, none of which
// a pid file names, so that the host has to be searched for each.
func BenchmarkStatusBurst(b *testing.B) {
	const keys = 5000
	log := logrus.New()
	log.SetOutput(io.Discard)
	var burst sync.WaitGroup
	engine, err := New(Config{
		Ledger: newLedger(), Log: log, RunDir: b.TempDir(),
		Finished: func(journal.Op, agentproto.Result) { burst.Done() },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Stop(b.Context())
	dir := b.TempDir()
	for task := 0; b.Loop(); task++ {
		burst.Add(keys)
		for i := range keys {
			engine.Submit(statusOp(task, i, dir))
		}
		burst.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*keys), "µs/key")
}

func statusOp(task, item int, dir string) journal.Op {
	dir = filepath.Join(dir, fmt.Sprint(item))
	return journal.Op{
		ID: journal.ID{Task: fmt.Sprint(task), Item: item}, Action: agentproto.ActionStatus, AcceptedAt: time.Now(),
		Spec: agentproto.Spec{
			Key: dir, ProcName: demoName, SetupPath: dir, PidPath: filepath.Join(dir, "demo.pid"), OpTimeoutMS: 1000,
		},
	}
}
