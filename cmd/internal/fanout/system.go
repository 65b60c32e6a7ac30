package fanout

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/apiclient"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/taskstore/redisstore"
)

const (
	readyPause = 50 * time.Millisecond
	// lookEvery is how often Redis is asked whether the task is finished.
	lookEvery = time.Millisecond
)

// system is a dispatcher, a worker and N agents, each a process.
type system struct {
	client *apiclient.Client
	store  *redisstore.Store // to see the end in Redis itself
	roles  []*child
}

func startSystem(ctx context.Context, cfg Config, plant *plant, hosts int) (*system, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	before := len(plant.children)
	address := "127.0.0.1:" + port
	servers := []string{"--nats", cfg.NATS, "--redis", cfg.Redis, "--log-level", "warn"}
	if _, err := plant.start(ctx, "worker", plant.program, append([]string{"worker"}, servers...), ""); err != nil {
		return nil, err
	}
	if _, err := plant.start(ctx, "dispatcher", plant.program, append([]string{"dispatcher", "--http", address}, servers...), ""); err != nil {
		return nil, err
	}
	_, err = plant.start(ctx, "agents", plant.program, []string{
		"simulate", "--agents", strconv.Itoa(hosts), "--nats", cfg.NATS, "--log-level", "warn",
	}, "ready ")
	if err != nil {
		return nil, err
	}
	s := &system{roles: plant.children[before:]}
	if s.client, err = apiclient.New("http://" + address); err != nil {
		return nil, err
	}
	if s.store, err = redisstore.Open(ctx, redisstore.Options{URL: cfg.Redis, Log: cfg.Log}); err != nil {
		return nil, err
	}
	return s, s.warmUp(ctx)
}

// warmUp waits until a small task goes through.
func (s *system) warmUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the system was not ready within %v", startTimeout))
	defer cancel()
	for s.client.Ready(ctx) != nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(readyPause):
		}
	}
	_, _, err := s.operate(ctx, 1)
	return err
}

func (s *system) stop() {
	for _, role := range slices.Backward(s.roles) {
		role.stop()
	}
	if s.store != nil {
		_ = s.store.Close() // it was only read
	}
}

// operate measures one status task on the first hosts of the fleet.
func (s *system) operate(ctx context.Context, hosts int) (accept, path time.Duration, err error) {
	submission := apiclient.Submission{
		Action:  procfleet.ActionStatus,
		Process: json.RawMessage(`{"namespace":"bench","name":"sample","proc_name":"sample"}`),
		Hosts:   make([]string, hosts),
	}
	for i := range submission.Hosts {
		submission.Hosts[i] = "0:" + simulate.Address(i).String()
	}
	begun := time.Now()
	id, err := s.client.Submit(ctx, submission, uuid.NewString())
	if err != nil {
		return 0, 0, err
	}
	accept = time.Since(begun)
	task, err := s.finished(ctx, procfleet.TaskID(id))
	if err != nil {
		return 0, 0, err
	}
	path = time.Since(begun)
	if n := task.Counts[procfleet.StateSucceeded]; n != hosts {
		return 0, 0, fmt.Errorf("task %s: %d of %d hosts succeeded: %v", id, n, hosts, task.Counts)
	}
	return accept, path, nil
}

func (s *system) finished(ctx context.Context, id procfleet.TaskID) (procfleet.Task, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("task %s did not finish within %v", id, patience))
	defer cancel()
	for {
		task, err := s.store.Task(ctx, id)
		if err != nil {
			return procfleet.Task{}, err
		}
		if task.State.Done() {
			return task, nil
		}
		select {
		case <-ctx.Done():
			return procfleet.Task{}, context.Cause(ctx)
		case <-time.After(lookEvery):
		}
	}
}
