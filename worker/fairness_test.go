package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/worker"
)

// Every chunk for a cloud area whose agents are missing or do not reply waits for the maximum time. Tasks
// for other areas, and hosts of this area that reply, must not wait for these chunks.
func TestAnUnavailableAreaDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, lane := range []procfleet.Lane{procfleet.LaneSmall, procfleet.BigLane(0)} {
		for _, listening := range []bool{true, false} {
			t.Run(fmt.Sprintf("lane %s listening %v", lane, listening), func(t *testing.T) {
				t.Parallel()
				testAreaAway(t, lane, listening)
			})
		}
	}
}

func testAreaAway(t *testing.T, lane procfleet.Lane, listening bool) {
	t.Helper()
	const awayChunks, quickChunks = 24, 8
	e := start(t, func(c *worker.Config) {
		c.Limits.SmallChunks, c.Limits.BigChunks, c.Limits.Parked = 4, 4, 60 // three chunks of one host
		c.Timing.Deliver.Again = [2]time.Duration{time.Hour, time.Hour}      // silence
		c.Timing.Deliver.Grace = time.Hour                                   // no responders
	})
	away, answers := cloudHost(7, 1), cloudHost(7, 2)
	if listening {
		e.agent(away, silent)
	} else {
		e.store.present(away, "i-away")
	}
	e.agent(answers, accept)
	e.agent(host(1), accept)
	stuck := e.store.create(lane, time.Hour, same(awayChunks, away)...)
	e.queue(stuck)
	e.eventually(func() bool { return e.store.called("Begin") > 4 }, "the area that is away takes what it gets")

	quick := e.store.create(lane, time.Hour, same(quickChunks, host(1))...)
	e.queue(quick)
	beside := e.store.create(lane, time.Hour, same(1, answers)...)
	e.queue(beside)
	for item := range quickChunks {
		e.waitState(quick.ID, item, procfleet.StateDelivered)
	}
	e.waitState(beside.ID, 0, procfleet.StateDelivered)
	for item := range awayChunks {
		if state := e.state(stuck.ID, item); state != procfleet.StatePending {
			t.Errorf("item %d of the unavailable area is %s", item, state)
		}
	}
	if listening {
		return
	}
	(&fakeAgent{t: t, conn: e.Conn, host: away, reply: accept}).listen()
	for item := range awayChunks {
		e.waitState(stuck.ID, item, procfleet.StateDelivered)
	}
}

func cloudHost(cloud procfleet.CloudArea, n int) procfleet.Host {
	h, err := procfleet.NewHost(cloud, fmt.Sprintf("10.7.0.%d", n))
	if err != nil {
		panic(err)
	}
	return h
}

// same returns n chunks that each contain the same host.
func same(n int, h procfleet.Host) []procfleet.Chunk {
	chunks := make([]procfleet.Chunk, n)
	for i := range chunks {
		chunks[i] = chunk(procfleet.ActionStatus, h)
	}
	return chunks
}

func TestChunksOfABigTaskDoNotWaitForSlowHostsOfAnother(t *testing.T) {
	t.Parallel()
	e := start(t, unswept, func(c *worker.Config) { c.Timing.Deliver.ParkAfter = time.Hour })
	e.agent(host(1), silent)
	e.agent(host(2), results)
	slow := e.store.create(procfleet.BigLane(0), time.Hour, chunk(procfleet.ActionStatus, host(1)))
	next := e.store.create(procfleet.BigLane(0), time.Hour, chunk(procfleet.ActionStatus, host(2)))
	refs := []bus.ChunkRef{{Task: slow.ID, Lane: slow.Lane}, {Task: next.ID, Lane: next.Lane}}
	if _, err := e.Bus.PublishChunks(t.Context(), refs, "0"); err != nil {
		t.Fatal(err)
	}
	e.waitState(next.ID, 0, procfleet.StateSucceeded)
	e.waitState(slow.ID, 0, procfleet.StatePending)
}
