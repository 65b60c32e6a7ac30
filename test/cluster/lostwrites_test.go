//go:build cluster && linux

package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/test/cluster/fleet"
)

// withoutConfirmation causes a fail-over of Redis in a fleet that does not wait for
// its replica, so that confirmed writes are lost.
func withoutConfirmation(t *testing.T, with func() fleet.Images) []*outcome {
	t.Helper()
	const name = "a fail-over loses notified results and a task"
	if !selected(t, name) {
		return nil
	}
	o := &outcome{
		name:   name,
		story:  "`--redis-wait-replicas 0`: the replica is cut off; one task ends and another is accepted; the master is killed before the replica has received either",
		result: "agents send the results again; the task is lost",
	}
	began := time.Now()
	o.failed = !t.Run("Redis confirms nothing", func(t *testing.T) {
		o.ran = true
		f := fleet.Start(t, fleet.Config{Images: with()})
		began = time.Now()
		loseTask(t, &stage{Fleet: f, ctx: t.Context(), log: t.Logf}, o)
	})
	o.took = time.Since(began)
	return []*outcome{o}
}

func loseTask(t *testing.T, s *stage, o *outcome) {
	c, err := client.New(client.Config{URL: strings.Join(s.Dispatchers(), ",")})
	if err != nil {
		t.Fatal(err)
	}
	hosts := hostsOf(t, s.Fleet)
	known := submitGated(t, c, "known", hosts...)
	eventually(t, "every host accepts the first task", func() bool {
		return count(t, c, known, procfleet.StateDelivered) == len(hosts)
	})
	master, err := s.Master(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Replicated(s.ctx); err != nil {
		t.Fatal(err)
	}
	replica := s.others(master, fleet.Redis)[0]
	if err := master.Isolate(replica); err != nil {
		t.Fatal(err)
	}
	forgotten := submitGated(t, c, "forgotten", hosts[0])
	for _, n := range s.Nodes(fleet.Agent) {
		if err := n.WriteFile("go", ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []procfleet.TaskID{known, forgotten} {
		if _, err := c.Wait(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := master.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica becomes the master", func() bool { now, err := s.Master(s.ctx); return err == nil && now == replica })
	eventually(t, "the end of the first task is lost", func() bool {
		task, err := c.Task(t.Context(), known)
		return err == nil && task.State == procfleet.TaskRunning
	})

	// The agents still have every result, and workers request it.
	eventually(t, "the first task ends again", func() bool { return count(t, c, known, procfleet.StateSucceeded) == len(hosts) })
	var failure *client.Error
	if task, err := c.Task(t.Context(), forgotten); !errors.As(err, &failure) || failure.Status != http.StatusNotFound {
		t.Errorf("the task that no remaining server has is %+v, %v", task, err)
	}
	if err := errors.Join(s.Repair(), s.settle()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, c, known, procfleet.StateSucceeded); n != len(hosts) {
		t.Errorf("after the return of the old master the task has %d of %d results", n, len(hosts))
	}
	for i, n := range s.Nodes(fleet.Agent) {
		marks, err := n.Marks("marks")
		if want := map[bool]int{true: 2, false: 1}[i == 0]; err != nil || len(marks) != want {
			t.Errorf("%s ran %d start commands, want %d (%v)", n, len(marks), want, err)
		}
	}
	o.under.Submissions, o.under.Items = 2, len(hosts)+1
}

// submitGated starts a program on hosts. Its start command ends when the file go
// exists.
func submitGated(t *testing.T, c *client.Client, name string, hosts ...procfleet.Host) procfleet.TaskID {
	t.Helper()
	spec := procfleet.DefaultSpec()
	spec.Namespace, spec.Name, spec.ProcName, spec.SetupPath = "lost", name, "sleep", fleet.MarkFolder
	spec.Control.NoProfile = true
	spec.Control.Start = fmt.Sprintf("echo %s >> marks; while [ ! -e go ]; do sleep 0.1; done", name)
	spec.Alive.Type, spec.Alive.OpTimeout = procfleet.Once, procfleet.Seconds(20)
	id, err := c.Submit(t.Context(), client.Submission{
		Operations: []client.Operation{{Action: procfleet.ActionStart, Process: spec, Hosts: hosts}},
		Timeout:    procfleet.Duration(10 * time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// count returns the number of items of a task in a state, or 0 if no dispatcher
// responds.
func count(t *testing.T, c *client.Client, id procfleet.TaskID, state procfleet.State) int {
	t.Helper()
	task, err := c.Task(t.Context(), id)
	if err != nil {
		return 0
	}
	return task.Counts[state]
}

// eventually waits for a condition, with a timeout for a busy machine.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	const patience = 3 * time.Minute
	testenv.Eventually(t, patience, func() bool {
		if done() {
			return true
		}
		<-time.After(200 * time.Millisecond) // limits the rate of requests
		return false
	}, what)
}
