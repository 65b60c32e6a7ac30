package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
)

// Cancel is the benchmark of the control of a task whose commands run on all hosts.
type Cancel struct {
	Config
	Hosts int
}

// Validate reports all invalid settings.
func (c Cancel) Validate() error {
	return errors.Join(c.Config.Validate(), checkSizes("--hosts", c.Hosts))
}

const (
	// cancelLatency is how long the commands of canceled tasks would run.
	cancelLatency = 20 * time.Second
	cancelGoal    = 2.0 // maximum ratio of a cancel to a fan-out
	pauseGoal     = 3.0 // maximum ratio of a pause to a round trip to the store
)

// controlled is one measured run.
type controlled struct {
	fanout time.Duration // POST of a stop to its end in Redis
	cancel time.Duration // POST of a cancel to the end of its task in Redis
	pause  time.Duration // POST of a pause to its response
	trip   time.Duration // one read of the task from the store
}

// Run runs the benchmark.
func (c Cancel) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, c.Config, func(l *lab) ([]*Table, error) {
		samples, err := c.measure(ctx, l)
		if err != nil {
			return nil, err
		}
		return []*Table{c.table(samples)}, nil
	})
}

// measure measures fan-outs with agents whose commands end at once, and then pauses and
// cancels with agents whose commands run.
func (c Cancel) measure(ctx context.Context, l *lab) ([]controlled, error) {
	system, err := startSystem(ctx, l, fleet{agents: c.Hosts})
	if err != nil {
		return nil, err
	}
	defer system.stop()
	samples := make([]controlled, c.Runs)
	body := submission(procfleet.ActionStop, sample, hosts(0, c.Hosts))
	for i := range samples {
		fanned, err := system.operate(ctx, body)
		if err != nil {
			return nil, fmt.Errorf("fan-out: %w", err)
		}
		samples[i].fanout = fanned.path
	}
	if err := system.restartFleet(ctx, fleet{agents: c.Hosts, more: []string{"--latency", cancelLatency.String()}}); err != nil {
		return nil, err
	}
	for i := range samples {
		s := &samples[i]
		if err := system.control(ctx, body, s); err != nil {
			return nil, err
		}
		l.Log.WithFields(logrus.Fields{"run": i + 1, "fanout_ms": s.fanout.Milliseconds(), "cancel_ms": s.cancel.Milliseconds()}).Info("measured")
	}
	return samples, nil
}

// control submits a task, waits until its commands run on all hosts, and then pauses, resumes
// and cancels it.
func (s *system) control(ctx context.Context, body []byte, c *controlled) error {
	id, err := s.wire.submit(body, "")
	if err != nil {
		return err
	}
	running := func() bool {
		task, err := s.store.Task(ctx, id)
		return err == nil && task.Counts[procfleet.StateDelivered] == task.Items
	}
	if err := until(ctx, "the commands run on all hosts", pollEvery, running); err != nil {
		return err
	}
	begun := time.Now()
	if _, err := s.store.Task(ctx, id); err != nil {
		return err
	}
	c.trip = time.Since(begun)
	if c.pause, err = s.transition(id, "pause", nil); err != nil {
		return err
	}
	begun = time.Now()
	if _, err = s.transition(id, "cancel", map[string]string{"mode": string(procfleet.CancelInterrupt)}); err != nil {
		return err
	}
	task, err := s.finished(ctx, id)
	if err != nil {
		return err
	}
	c.cancel = time.Since(begun)
	if n := task.Counts[procfleet.StateFailed]; n != task.Items {
		return fmt.Errorf("task %s: %d of %d commands were interrupted: %v", id, n, task.Items, task.Counts)
	}
	return nil
}

// transition controls a task and returns the time until the response.
func (s *system) transition(id procfleet.TaskID, name string, body map[string]string) (time.Duration, error) {
	text, err := json.Marshal(body)
	if body == nil {
		text = nil
	}
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	err = s.wire.call(http.MethodPost, "/v1/tasks/"+string(id)+"/"+name, "", text, func(io.Reader) error { return nil })
	return time.Since(begun), err
}

func (c Cancel) table(samples []controlled) *Table {
	t := &Table{
		Title:   fmt.Sprintf("Control of a task that runs on %s hosts, ms", thousands(c.Hosts)),
		Columns: []string{"what", "time", "floor", "ratio", "goal", "met"},
		Notes: []string{"The floor of a cancel is a stop on the same hosts, POST to finished in Redis; the cancel interrupts all commands and is " +
			"measured in the same way. The floor of a pause is one read of the task from the store."},
	}
	of := func(column func(*controlled) time.Duration) time.Duration { return medianOf(samples, column) }
	cancel, fanout := of(func(s *controlled) time.Duration { return s.cancel }), of(func(s *controlled) time.Duration { return s.fanout })
	pause, trip := of(func(s *controlled) time.Duration { return s.pause }), of(func(s *controlled) time.Duration { return s.trip })
	goal, met := atMost(ratio(cancel, fanout), cancelGoal, " × fan-out")
	t.add("cancel", ms(cancel), ms(fanout), ratio(cancel, fanout), goal, met)
	goal, met = atMost(ratio(pause, trip), pauseGoal, " × round trip")
	t.add("pause", ms(pause), ms(trip), ratio(pause, trip), goal, met)
	return t
}
