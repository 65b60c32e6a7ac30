package operate

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// BenchmarkStatusBurst queries 5,000 processes in one command. None has a pid file, so each
// query searches the host.
func BenchmarkStatusBurst(b *testing.B) {
	benchmarkBurst(b, 5000, agentproto.ActionStatus)
}

// BenchmarkStartBurst starts 500 programs that end at once. Each is searched for at the end of
// a start window of one second.
func BenchmarkStartBurst(b *testing.B) {
	benchmarkBurst(b, 500, agentproto.ActionStart)
}

func benchmarkBurst(b *testing.B, keys int, action string) {
	b.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	var burst sync.WaitGroup
	engine, err := New(testConfig(Config{
		Ledger: newLedger(), Log: log, RunDir: b.TempDir(),
		Finished: func(op journal.Op, r agentproto.Result) {
			if r.Code != agentproto.CodeSuccess {
				b.Errorf("%s: %s", op.Spec.Key, r.Message)
			}
			burst.Done()
		},
	}))
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Stop(b.Context())
	dir := b.TempDir()
	for task := 0; b.Loop(); task++ {
		burst.Add(keys)
		for i := range keys {
			engine.Submit(burstOp(action, task, i, dir))
		}
		burst.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*keys), "µs/key")
}

func burstOp(action string, task, item int, dir string) journal.Op {
	return journal.Op{
		ID: journal.ID{Task: fmt.Sprint(task), Item: item}, Fence: int64(task), Action: action, AcceptedAt: time.Now(), ReceivedAt: time.Now(),
		Spec: agentproto.Spec{
			Key: fmt.Sprint(item), ProcName: demoName, SetupPath: dir, StartCmd: "true", NoProfile: true, Type: "once",
			OpTimeoutMS: 60_000, StartCheckBeginMS: 1000, StartCheckEndMS: 1000,
		},
	}
}
