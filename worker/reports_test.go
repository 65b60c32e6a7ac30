package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/catalog"
)

// report publishes a report of a host's agent on its processes.
func (e *env) report(n int, number int64, processes ...agentproto.ManagedProcess) {
	e.t.Helper()
	data, err := agentproto.Encode(&agentproto.Processes{
		Header: agentproto.Header{Type: agentproto.TypeProcesses}, Host: host(n).String(),
		AgentID: "a1", Instance: "i1", Number: number, Processes: processes,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.publishReport(data)
}

func (e *env) publishReport(data []byte) {
	e.t.Helper()
	if err := e.Conn.Publish(agentproto.ProcessesSubject(0), data); err != nil {
		e.t.Fatal(err)
	}
}

// waitReport waits until the report with the number is the host's last one.
func (e *env) waitReport(n int, number int64) catalog.Report {
	e.t.Helper()
	e.eventually(func() bool { return e.store.reported(host(n)).Number == number }, "the report is stored")
	return e.store.reported(host(n))
}

func TestReportsAreStored(t *testing.T) {
	t.Parallel()
	e := start(t)
	at := time.Date(2026, 11, 21, 8, 0, 0, 123456000, time.UTC)
	long := strings.Repeat("x", 1000)
	status := agentproto.Status{At: at, Running: true, PID: 7, CPU: 1.5, Phase: long, Command: "secret", Evidence: "seen"}
	number := time.Now().UnixMicro()
	e.report(1, number,
		agentproto.ManagedProcess{Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "java", Desired: agentproto.DesiredUp, Status: status},
		agentproto.ManagedProcess{Key: "/opt/x", ProcName: "x", Desired: agentproto.DesiredDown},
		agentproto.ManagedProcess{Key: "/opt/y", ProcName: "y", Desired: "unknown"},
		agentproto.ManagedProcess{ProcName: "without a key"},
		agentproto.ManagedProcess{Key: "shop:", Namespace: "shop", ProcName: "without a name"},
		agentproto.ManagedProcess{Key: long},
	)
	want := catalog.Report{
		Host: host(1), AgentID: "a1", Instance: "i1", Number: number, At: time.UnixMicro(number).UTC(),
		Processes: []catalog.ReportedProcess{
			{
				Key: "shop:web", Namespace: "shop", Name: "web", ProcName: "java", Desired: catalog.DesiredUp,
				Status: procfleet.ProcessStatus{At: at, Running: true, PID: 7, CPU: 1.5, Phase: long[:128]},
			},
			{Key: "/opt/x", ProcName: "x", Desired: catalog.DesiredDown},
			{Key: "/opt/y", ProcName: "y", Desired: catalog.DesiredNone},
		},
	}
	if diff := cmp.Diff(want, e.waitReport(1, number), cmpopts.EquateComparable(procfleet.Host{})); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	e.report(1, number+1) // nothing is managed any more
	if got := e.waitReport(1, number+1); len(got.Processes) != 0 {
		t.Errorf("still %+v", got.Processes)
	}
}

func TestWhatIsNoReportDoesNotStopTheNext(t *testing.T) {
	t.Parallel()
	e := start(t)
	for _, text := range []string{
		"", "{", `{"type":"procfleet.agent.v1.presence","host":"0:10.0.0.1","instance":"i"}`,
		`{"type":"procfleet.agent.v1.processes","host":"7:10.0.0.1","instance":"i","number":1}`,
		`{"type":"procfleet.agent.v1.processes","host":"0:10.0.0.1","number":1}`,
		`{"type":"procfleet.agent.v1.processes","host":"0:10.0.0.1","instance":"i","number":-1}`,
	} {
		e.publishReport([]byte(text))
	}
	e.report(2, 5)
	e.waitReport(2, 5)
	if got := e.store.reported(host(1)); !got.Host.IsZero() {
		t.Errorf("stored %+v", got)
	}
}

// Otherwise a report with a number in the future would cause the rejection of all later reports.
func TestReportFromTheFutureIsReplacedByTheNext(t *testing.T) {
	t.Parallel()
	e := start(t)
	ahead := time.Now().Add(24 * time.Hour).UnixMicro()
	e.report(1, ahead, agentproto.ManagedProcess{Key: "a"})
	e.eventually(func() bool { return len(e.store.reported(host(1)).Processes) == 1 }, "the report is stored")
	if got := e.store.reported(host(1)); got.Number >= ahead || got.At.After(time.Now().Add(2*time.Minute)) {
		t.Errorf("number %d, at %v", got.Number, got.At)
	}
	e.eventually(func() bool {
		e.report(1, ahead+1)
		return len(e.store.reported(host(1)).Processes) == 0
	}, "the next report counts")
}

func TestReportsDuringAnOutageOfTheStoreAreMadeGoodByLaterOnes(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.store.setUnavailable(true)
	e.report(1, 1, agentproto.ManagedProcess{Key: "a"})
	e.eventually(func() bool { return e.store.called("Report") > 0 }, "the store was asked")
	e.store.setUnavailable(false)
	e.report(1, 2, agentproto.ManagedProcess{Key: "b"})
	if got := e.waitReport(1, 2); len(got.Processes) != 1 || got.Processes[0].Key != "b" {
		t.Errorf("stored %+v", got)
	}
}

func TestManyReportsGoToTheStoreTogether(t *testing.T) {
	t.Parallel()
	e := start(t)
	const many = 2000
	for n := range many {
		e.report(n+1, 1, agentproto.ManagedProcess{Key: "a"})
	}
	e.waitReport(many, 1)
	if calls := e.store.called("Report"); calls > many/20 {
		t.Errorf("%d reports took %d calls", many, calls)
	}
	for n := range many {
		if e.store.reported(host(n+1)).Number != 1 {
			t.Fatalf("the report of host %d is not stored", n+1)
		}
	}
}
