// Package demo demonstrates procfleet through its public HTTP API, in two minutes: six sample services
// start on this host, two of them also on simulated hosts, a restart is rolled out, a broken release is
// held at its first host and undone, and a killed process comes back.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Namespace is the namespace of the sample services.
const Namespace = "demo"

// web is the service that is restarted, broken and killed. It and api run on all hosts.
const web = "web"

var services = []string{web, "api", "search", "mail", "cart", "reports"}

// Look is a pause after each step in which a viewer can find it in the console. The demo takes two minutes with it.
const Look = 20 * time.Second

const (
	// statusEvery is the interval at which the demo reads the state of a task or process.
	statusEvery = 500 * time.Millisecond
	// patience limits each wait.
	patience = 60 * time.Second
)

// Config configures a demo; every field is required.
type Config struct {
	Client    *client.Client
	Server    string           // URL of the server in the printed commands
	Host      procfleet.Host   // host of this machine's agent
	Simulated []procfleet.Host // hosts of simulated agents
	Look      time.Duration    // pause after each step
	Dir       string           // directory of the sample processes; created if missing
	Out       io.Writer
}

// Demo is one run of the demo.
type Demo struct {
	Config
	specs map[string]procfleet.ProcessSpec // of the services, by name
}

// New writes the files of the sample services.
func New(cfg Config) (*Demo, error) {
	d := &Demo{Config: cfg, specs: make(map[string]procfleet.ProcessSpec)}
	for _, name := range services {
		spec, err := prepare(filepath.Join(cfg.Dir, name), name)
		if err != nil {
			return nil, fmt.Errorf("prepare the sample service in %s: %w", cfg.Dir, err)
		}
		d.specs[name] = spec
	}
	return d, nil
}

// Run shows all steps. The services run on until [Demo.Clean].
func (d *Demo) Run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.start, d.rollingRestart, d.brokenRelease, d.crash} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := d.pause(ctx); err != nil {
			return err
		}
	}
	d.say("\nThe demo is over, and the system keeps running. Look at the console, or: procfleet ps --server %s", d.Server)
	d.say("Ctrl-C stops the sample services and the system.")
	return nil
}

func (d *Demo) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d.Look):
		return nil
	}
}

func (d *Demo) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

// step announces a step with the command that does the same.
func (d *Demo) step(what, command string) {
	d.say("\ndemo: %s\n  $ procfleet %s --server %s", what, command, d.Server)
}

// hosts returns the hosts of a service, this host first.
func (d *Demo) hosts(name string) []procfleet.Host {
	if name == web || name == "api" {
		return slices.Concat([]procfleet.Host{d.Host}, d.Simulated)
	}
	return []procfleet.Host{d.Host}
}

func (d *Demo) start(ctx context.Context) error {
	d.step(fmt.Sprintf("start %d services, two of them also on %d simulated hosts", len(services), len(d.Simulated)), "start -f "+d.specFile(web)+" "+d.Host.String())
	var s client.Submission
	for _, name := range services {
		if _, err := d.Client.Register(ctx, d.specs[name], client.Targets{Hosts: d.hosts(name)}); err != nil {
			return err
		}
		s.Operations = append(s.Operations, client.Operation{Action: procfleet.ActionStart, Process: d.specs[name], Hosts: d.hosts(name)})
	}
	task, err := d.perform(ctx, s)
	if err != nil {
		return err
	}
	if n := task.Counts.Failed(); n > 0 {
		return fmt.Errorf("%d of %d starts failed: %s", n, task.Items, d.link(task.ID))
	}
	return nil
}

func (d *Demo) rollingRestart(ctx context.Context) error {
	d.step("restart web everywhere, at most 4 hosts at once", "restart "+Namespace+"/"+web+" --max-concurrency 4")
	_, err := d.perform(ctx, d.restart(d.specs[web], &procfleet.RolloutPolicy{MaxConcurrency: amount("4")}))
	return err
}

// restart returns a restart of a service on its hosts.
func (d *Demo) restart(spec procfleet.ProcessSpec, policy *procfleet.RolloutPolicy) client.Submission {
	return client.Submission{
		Operations: []client.Operation{{Action: procfleet.ActionRestart, Process: spec, Hosts: d.hosts(spec.Name)}},
		Rollout:    policy,
	}
}

func (d *Demo) brokenRelease(ctx context.Context) error {
	d.step("release a web that does not start: the first host alone, and no failure is tolerated",
		"restart -f broken.yaml --ramp 1,50% --max-failures 0 "+d.Host.String()+" ...")
	broken := d.specs[web]
	broken.Control.Start, broken.Control.Restart = "echo 'web: configuration line 7: unknown word'; exit 1", ""
	none := amount("0")
	id, err := d.submit(ctx, d.restart(broken, &procfleet.RolloutPolicy{Ramp: []procfleet.Amount{amount("1"), amount("50%")}, MaxFailures: &none}))
	if err != nil {
		return err
	}
	held, err := d.until(ctx, id, func(t *client.Task) bool { return t.Rollout.Hold != nil || t.Done() })
	if err != nil {
		return err
	}
	if held.Rollout.Hold == nil {
		return fmt.Errorf("the broken release was not held: %s", d.link(id))
	}
	for result, err := range d.Client.Results(ctx, id, client.Query{PageSize: 1}) { // failures first
		if err != nil {
			return err
		}
		d.say("  held after %d of %d hosts: %s", held.Rollout.Released, held.Rollout.Hosts, result.Message)
		break
	}
	if err := d.pause(ctx); err != nil {
		return err
	}
	d.step("undo it", "task undo "+string(id))
	undo, err := d.Client.UndoTask(ctx, id, client.TaskUndo{})
	if err != nil {
		return err
	}
	_, err = d.until(ctx, undo.ID, (*client.Task).Done)
	if err == nil {
		d.say("  the host runs the earlier release again: %s", d.link(undo.ID))
	}
	return err
}

// crash kills web on this host and waits until the agent has restarted it.
func (d *Demo) crash(ctx context.Context) error {
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	if status == nil || status.PID == 0 {
		return errors.New("web does not run on this host")
	}
	pid := status.PID
	d.say("\ndemo: a process crashes\n  $ kill -9 %d", pid)
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := process.Kill(); err != nil {
		return fmt.Errorf("kill the sample process %d: %w", pid, err)
	}
	killed := time.Now()
	return wait(ctx, func() (bool, error) {
		now, err := d.status(ctx)
		if err != nil || now == nil || !now.Running || now.PID == pid {
			return false, err
		}
		d.say("  the agent restarted it after %.1fs: new pid %d", time.Since(killed).Seconds(), now.PID)
		return true, nil
	})
}

// status returns the observation of a status operation on web on this host.
func (d *Demo) status(ctx context.Context) (*procfleet.ProcessStatus, error) {
	id, err := d.Client.Submit(ctx, client.Submission{Operations: []client.Operation{
		{Action: procfleet.ActionStatus, Process: d.specs[web], Hosts: []procfleet.Host{d.Host}},
	}})
	if err != nil {
		return nil, err
	}
	if _, err := d.until(ctx, id, (*client.Task).Done); err != nil {
		return nil, err
	}
	for result, err := range d.Client.Results(ctx, id, client.Query{}) {
		return result.Status, err
	}
	return nil, nil //nolint:nilnil // the task has no items
}

// perform submits operations and waits for their end.
func (d *Demo) perform(ctx context.Context, s client.Submission) (client.Task, error) {
	id, err := d.submit(ctx, s)
	if err != nil {
		return client.Task{}, err
	}
	task, err := d.until(ctx, id, (*client.Task).Done)
	if err == nil {
		d.say("  finished: %d succeeded, %d unchanged, %d failed",
			task.Counts[procfleet.StateSucceeded], task.Counts[procfleet.StateUnchanged], task.Counts.Failed())
	}
	return task, err
}

func (d *Demo) submit(ctx context.Context, s client.Submission) (procfleet.TaskID, error) {
	id, err := d.Client.Submit(ctx, s)
	if err == nil {
		d.say("  accepted: %s", d.link(id))
	}
	return id, err
}

// link returns the address of the page of a task.
func (d *Demo) link(id procfleet.TaskID) string { return d.Server + "/ui/tasks/" + string(id) }

// until reads a task until a condition is met.
func (d *Demo) until(ctx context.Context, id procfleet.TaskID, met func(*client.Task) bool) (task client.Task, err error) {
	err = wait(ctx, func() (bool, error) {
		task, err = d.Client.Task(ctx, id)
		return err == nil && met(&task), err
	})
	return task, err
}

// wait calls a condition until it is met.
func wait(ctx context.Context, met func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the demo waited %v in vain", patience))
	defer cancel()
	for {
		if is, err := met(); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(statusEvery):
		}
	}
}

// Clean stops the sample services, removes their registrations and their files.
func (d *Demo) Clean(ctx context.Context) error {
	var s client.Submission
	for _, name := range services {
		s.Operations = append(s.Operations, client.Operation{Action: procfleet.ActionKill, Process: d.specs[name], Hosts: []procfleet.Host{d.Host}})
	}
	id, err := d.Client.Submit(ctx, s)
	if err == nil {
		_, err = d.until(ctx, id, (*client.Task).Done)
	}
	for _, name := range services {
		if err == nil {
			_, err = d.Client.Unregister(ctx, Namespace, name, client.Targets{Hosts: d.hosts(name)})
		}
	}
	if err != nil {
		return fmt.Errorf("stop the sample services: %w", err)
	}
	return os.RemoveAll(d.Dir)
}

func amount(text string) procfleet.Amount {
	a, err := procfleet.ParseAmount(text)
	if err != nil {
		panic(err) // a constant of this package
	}
	return a
}
