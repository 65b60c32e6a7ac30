package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// BenchmarkMemory measures the memory of an agent 30 s after it connected, without processes and with
// 100 supervised ones: all memory, and the part that is not mapped from its program file. Run it with
// -benchtime 1x.
func BenchmarkMemory(b *testing.B) {
	for _, processes := range []int{0, 100} {
		b.Run(fmt.Sprintf("supervised=%d", processes), func(b *testing.B) {
			for range b.N {
				measureMemory(b, processes)
			}
		})
	}
}

func measureMemory(b *testing.B, processes int) {
	b.Helper()
	h := newHost(b)
	// End the agent before its processes: otherwise it restarts them.
	sleepers := make([]*sleeper, processes)
	for i := range sleepers {
		sleepers[i] = newSleeper(b)
	}
	h.start("")
	if processes > 0 {
		h.supervise(sleepers)
	}
	const settle = 30 * time.Second
	<-time.After(settle)
	for _, s := range sleepers {
		if s.process() == 0 {
			b.Fatal("a supervised process does not run")
		}
	}
	b.ReportMetric(memory(b, h.child.PID(), "VmRSS"), "MiB")
	b.ReportMetric(memory(b, h.child.PID(), "RssAnon"), "MiB-own")
	b.ReportMetric(0, "ns/op") // it is the settling
}

func (h *host) supervise(sleepers []*sleeper) {
	h.t.Helper()
	all := sleepers[0].command("supervise", agentproto.ActionSupervise, 1)
	all.Items, all.Specs = nil, nil
	for i, s := range sleepers {
		spec, err := json.Marshal(&s.spec)
		if err != nil {
			h.t.Fatal(err)
		}
		all.Items = append(all.Items, agentproto.CommandItem{Item: i, Action: agentproto.ActionSupervise, Spec: i, Fence: 1})
		all.Specs = append(all.Specs, spec)
	}
	h.deliver(all)
	done := 0
	for done < len(sleepers) {
		for _, r := range h.received(100 * time.Millisecond) {
			if r.Code != agentproto.CodeSuccess {
				h.t.Fatalf("supervise: %+v", r)
			}
			done++
		}
	}
}

// memory returns a field of a process's status, in MiB.
func memory(b *testing.B, pid int, what string) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), what+":")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
