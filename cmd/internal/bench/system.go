package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/internal/stores"
)

const (
	readyPause = 50 * time.Millisecond
	// pollEvery is the interval at which Redis is polled for the end of a big task.
	pollEvery = time.Millisecond
)

// system is the system under test: a dispatcher, a worker and simulated agents, which run
// in three processes.
type system struct {
	lab      *lab
	address  string // HTTP address of the dispatcher
	agents   int
	wire     *wire
	store    *stores.Redis // reads the end of tasks from Redis
	finishes *finishes
	before   int // number of children of the plant before the system started
}

// fleet configures the agents and the worker of a system.
type fleet struct {
	agents      int
	connections int      // number of NATS connections of the agents; 0 selects the default
	more        []string // additional flags of the agents
	worker      []string // additional flags of the worker
}

// startSystem starts the roles and the agents and waits until a task succeeds.
func startSystem(ctx context.Context, l *lab, f fleet) (*system, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	s := &system{lab: l, address: "127.0.0.1:" + port, agents: f.agents, before: len(l.plant.children)}
	if err := s.start(ctx, f); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *system) start(ctx context.Context, f fleet) (err error) {
	if err := s.lab.startWorker(ctx, f.worker...); err != nil {
		return err
	}
	if err := s.startDispatcher(ctx); err != nil {
		return err
	}
	if err := s.startFleet(ctx, f); err != nil {
		return err
	}
	if s.store, err = s.lab.openStore(ctx); err != nil {
		return err
	}
	if s.finishes, err = subscribeFinishes(s.lab.conn); err != nil {
		return err
	}
	return s.warmUp(ctx)
}

func (l *lab) startWorker(ctx context.Context, flags ...string) error {
	return l.plant.startRole(ctx, worker, slices.Concat([]string{"worker"}, l.natsFlags(), l.redisFlags(), flags), "")
}

func (s *system) startDispatcher(ctx context.Context) error {
	args := slices.Concat([]string{"dispatcher", "--http", s.address}, s.lab.natsFlags(), s.lab.redisFlags())
	return s.lab.plant.startRole(ctx, dispatcher, args, "")
}

// freshDispatcher stops the dispatcher and starts a new one.
func (s *system) freshDispatcher(ctx context.Context) error {
	s.lab.plant.child(dispatcher).stop()
	s.wire.close()
	s.wire = nil
	if err := s.startDispatcher(ctx); err != nil {
		return err
	}
	return s.warmUp(ctx)
}

func (s *system) startFleet(ctx context.Context, f fleet) error {
	args := append([]string{"simulate", "--agents", strconv.Itoa(f.agents)}, s.lab.natsFlags()...)
	if f.connections > 0 {
		args = append(args, "--connections", strconv.Itoa(f.connections))
	}
	_, err := s.lab.plant.start(ctx, agents, s.lab.plant.self, append(args, f.more...), "ready ")
	return err
}

// restartFleet stops the agents and starts new agents with the configuration f.
func (s *system) restartFleet(ctx context.Context, f fleet) error {
	s.lab.plant.child(agents).stop()
	return s.startFleet(ctx, f)
}

// warmUp waits until a small task succeeds.
func (s *system) warmUp(ctx context.Context) error {
	if err := until(ctx, "the system is ready", readyPause, func() bool { return s.ready(ctx) == nil }); err != nil {
		return err
	}
	_, err := s.operate(ctx, oneHost(0))
	return err
}

func (s *system) ready(ctx context.Context) (err error) {
	if s.wire == nil {
		if s.wire, err = dial(ctx, s.address); err != nil {
			return err
		}
	}
	if err = s.wire.call(http.MethodGet, "/readyz", "", nil, func(io.Reader) error { return nil }); err != nil {
		s.wire.close()
		s.wire = nil
	}
	return err
}

func (s *system) stop() {
	for _, role := range slices.Backward(s.lab.plant.children[s.before:]) {
		role.stop()
	}
	if s.wire != nil {
		s.wire.close()
	}
	if s.finishes != nil {
		s.finishes.stop()
	}
	if s.store != nil {
		_ = s.store.Close() // no pending writes
	}
}

// sample is the name of the process that tasks operate on.
const sample = "sample"

// submission returns the body of a submission of action on the process name of hosts.
func submission(action procfleet.Action, name string, hosts []string) []byte {
	process := map[string]any{"namespace": "bench", "name": name, "proc_name": sample}
	if action != procfleet.ActionStatus {
		process["setup_path"], process["control"] = "/opt/sample", map[string]string{"start": "./start.sh", "stop": "./stop.sh"}
	}
	body, err := json.Marshal(map[string]any{"action": action, "process": process, "hosts": hosts})
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return body
}

// oneHost returns the submission of a status task on agent i. manyHosts returns the
// submission of a status task on the first n agents.
func oneHost(i int) []byte {
	return submission(procfleet.ActionStatus, sample, []string{host(0, i)})
}

func manyHosts(n int) []byte { return submission(procfleet.ActionStatus, sample, hosts(0, n)) }

// hosts returns the hosts of the first n agents of a cloud area.
func hosts(cloud, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = host(cloud, i)
	}
	return all
}

func host(cloud, i int) string { return strconv.Itoa(cloud) + ":" + simulate.Address(i).String() }

// operated holds durations of a task, measured from its POST.
type operated struct {
	id     procfleet.TaskID
	accept time.Duration // until the response with the task id
	path   time.Duration // until the task is finished in Redis
}

// operate submits a task, waits for its end and returns the durations.
func (s *system) operate(ctx context.Context, submission []byte) (o operated, err error) {
	begun := time.Now()
	if o.id, err = s.wire.submit(submission, ""); err != nil {
		return o, err
	}
	o.accept = time.Since(begun)
	task, err := s.finished(ctx, o.id)
	if err != nil {
		return o, err
	}
	o.path = time.Since(begun)
	if n := task.Counts[procfleet.StateSucceeded]; n != task.Items {
		return o, fmt.Errorf("task %s: %d of %d hosts succeeded: %v", o.id, n, task.Items, task.Counts)
	}
	return o, nil
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
		if err := wait(ctx, pollEvery); err != nil {
			return procfleet.Task{}, err
		}
	}
}

// floorCPU returns the total processor time of NATS, Redis and this process, which acts as
// the client in floors.
func (s *system) floorCPU() time.Duration {
	used := s.lab.plant.cpu()
	return used[natsServer] + used[redisServer] + cpuTime(os.Getpid())
}
