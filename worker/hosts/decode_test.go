package hosts

import (
	"strconv"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/worker/agentlink"
)

func FuzzDecodePresence(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.presence","host":"0:10.0.0.1","instance":"i","incarnation":"p"}`), "procfleet.presence.0")
	f.Add([]byte(`{"type":"procfleet.agent.v1.presence","host":"0:10.0.0.1","instance":"i"}`), "procfleet.presence.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		_, a, err := decodePresence(data, subject)
		if err == nil && (a.Host.IsZero() || a.Instance == "" || a.Incarnation == "") {
			t.Errorf("announcement %+v got through", a)
		}
	})
}

func FuzzDecodeReport(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.processes","host":"0:10.0.0.1","instance":"i","number":1,"processes":[{"key":"a:b","namespace":"a","name":"b","desired":"up","status":{"phase":"running"}}]}`), "procfleet.processes.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		now := time.Unix(1, 0)
		_, r, err := decodeReport(data, subject, now)
		if err != nil {
			return
		}
		if r.Host.IsZero() || r.Instance == "" || r.Number <= 0 || r.At.After(now.Add(reportAhead)) {
			t.Errorf("report %+v got through", r)
		}
		for _, p := range r.Processes {
			if p.Key == "" || len(p.Key) > procfleet.MaxKey || (p.Namespace == "") != (p.Name == "") || len(p.Status.Phase) > agentlink.MaxName {
				t.Errorf("process %+v got through", p)
			}
		}
	})
}

func BenchmarkDecodeReport(b *testing.B) {
	at := time.Date(2026, 11, 21, 8, 0, 0, 123000000, time.UTC)
	m := agentproto.Processes{
		Header: agentproto.Header{Type: agentproto.TypeProcesses, ID: "7d5fa1f6-8f0e-4a53-9f43-1b2f0a4f3a11", Sent: at},
		Host:   "0:10.0.0.1", Instance: "0b7a3c1e-55a1-4c7e-8a5c-6f4e7f0c2d19", Number: at.UnixMicro(),
	}
	for i := range 3 {
		name := "web_" + strconv.Itoa(i)
		m.Processes = append(m.Processes, agentproto.ManagedProcess{
			Key: "shop:" + name, Namespace: "shop", Name: name, ProcName: "java", Desired: agentproto.DesiredUp,
			Status: agentproto.Status{
				At: at, UTCOffset: 28_800, Running: true, Supervised: true, Phase: "running", PID: 4711, Stat: "S", Threads: 31,
				StartedAt: at, ElapsedMS: 1_500_000, UserMS: 900, SystemMS: 100, CPU: 12.5, CPUAverage: 3.25,
				MemoryBytes: 1 << 30, MemoryPercent: 6.5, HostFreeKB: 8 << 20, RegisteredAt: at, LastStartedAt: at,
			},
		})
	}
	data, err := agentproto.Encode(&m)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decodeReport(data, "procfleet.processes.0", at); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzDecodeSettingsRequest(f *testing.F) {
	f.Add([]byte(`{"type":"procfleet.agent.v1.settings","host":"0:10.0.0.1","instance":"i"}`), "procfleet.settings.0")
	f.Fuzz(func(t *testing.T, data []byte, subject string) {
		if _, host, err := decodeSettingsRequest(data, subject); err == nil && host.IsZero() {
			t.Error("a settings request of no host got through")
		}
	})
}
