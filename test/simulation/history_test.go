package simulation

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agent"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/worker/collect"
	"github.com/procfleet/procfleet/worker/deliver"
	"github.com/procfleet/procfleet/worker/notify"
	"github.com/procfleet/procfleet/worker/release"
)

// history is one run of a fleet from a seed.
type history struct {
	seed   uint64
	random *rand.Rand
	fleet  *fleet
	load   *check.Load
	hosts  []*host
	deaths deaths
	overs  []func() // end the periods of fail-overs
}

// outcome is the result of a history.
type outcome struct {
	seed   uint64
	broken []check.Violation
	err    error
	news   []string     // faults of the fleet, in its time
	marks  []check.Mark // commands that ran on its hosts
	seen   check.Totals
	lasted time.Duration
	// undecided is the number of processes for which the check of RuleExplained
	// timed out.
	undecided int
}

// explainingTime limits the check of one process.
const explainingTime = time.Second

// failed reports whether the fleet violated a rule.
func (o *outcome) failed() bool { return o.err != nil || len(o.broken) > 0 }

func (o *outcome) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s of fleet time: %s\n", o.seed, o.lasted.Round(time.Second), o.seen)
	for _, line := range o.news {
		fmt.Fprintln(&b, line)
	}
	if o.err != nil {
		fmt.Fprintln(&b, "error:", o.err)
	}
	for _, v := range o.broken {
		fmt.Fprintln(&b, v)
	}
	return b.String()
}

// commands lists the commands that ran on the hosts.
func (o *outcome) commands() string {
	var b strings.Builder
	for _, m := range o.marks {
		fmt.Fprintf(&b, "%s host %s: %s of %s (%s) for %s\n", m.At.Format("15:04:05.000"), m.Host, m.Verb, m.Process, m.Token, m.Operation)
	}
	return b.String()
}

// script causes the faults of a fleet between its start and its recovery.
type script func(*history)

// explore runs the history of a seed.
func explore(t *testing.T, seed uint64, d *defect, s script) *outcome {
	t.Helper()
	dir, err := os.MkdirTemp(memoryFolder(), "procfleet-simulation-") //nolint:usetesting // in memory, and removed after each history
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // a leftover is harmless
	o := &outcome{seed: seed}
	var seen *check.History
	synctest.Test(t, func(*testing.T) {
		began := time.Now()
		h := &history{seed: seed, random: rand.New(rand.NewPCG(seed, 2))}
		o.broken, o.err = h.run(dir, d, s)
		if h.load != nil {
			o.news, o.marks, o.seen = h.fleet.news, h.fleet.marks.all, h.load.Totals()
			seen = h.load.History()
		}
		o.lasted = time.Since(began)
	})
	// The NATS client library pools timers for the whole process, and a timer must
	// not be used outside the bubble that created it.
	runtime.GC()
	runtime.GC()
	if seen != nil {
		var unexplained []check.Violation
		unexplained, o.undecided = seen.Explained(o.marks, explainingTime)
		o.broken = append(o.broken, unexplained...)
	}
	return o
}

// memoryFolder returns a folder in memory, or "" for the default.
func memoryFolder() string {
	const shm = "/dev/shm"
	if info, err := os.Stat(shm); err == nil && info.IsDir() {
		return shm
	}
	return ""
}

// Sizes of a history.
const (
	dispatchers = 2
	workers     = 2
	submitters  = 2
	taskTimeout = 40 * time.Second
)

// run starts a fleet with a load, runs the script, lets the fleet recover, and
// checks the history.
func (h *history) run(dir string, d *defect, s script) (broken []check.Violation, err error) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.SetLevel(logrus.PanicLevel)
	if *verbose {
		log.SetOutput(os.Stderr)
		log.SetLevel(logrus.DebugLevel)
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000", DisableColors: true})
	}
	if h.fleet, err = newFleet(dir, h.seed, log, d); err != nil {
		return nil, err
	}
	defer func() {
		if closed := h.fleet.close(); err == nil {
			err = closed
		}
	}()
	if err := h.populate(); err != nil {
		return nil, err
	}
	if err := h.begin(); err != nil {
		return nil, err
	}
	s(h)
	h.endFaults()
	return h.load.Settle(context.Background())
}

// populate starts all roles.
func (h *history) populate() error {
	for n := range dispatchers {
		h.fleet.add(fmt.Sprintf("d%d", n+1), check.Dispatcher, nil)
	}
	for n := range workers {
		h.fleet.add(fmt.Sprintf("w%d", n+1), check.Worker, nil)
	}
	for n, text := range []string{"0:10.0.0.1", "0:10.0.0.2", "1:10.0.0.3"} {
		addr, err := procfleet.ParseHost(text)
		if err != nil {
			return err
		}
		h.hosts = append(h.hosts, newHost(addr, h.fleet.marks))
		h.fleet.add(fmt.Sprintf("a%d", n+1), check.Agent, h.hosts[n])
	}
	for _, n := range h.fleet.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	return nil
}

// begin starts the load.
func (h *history) begin() error {
	absent, err := procfleet.ParseHost("0:10.0.0.99")
	if err != nil {
		return err
	}
	cfg := check.Config{
		Transport: h.fleet, Absent: []procfleet.Host{absent}, Folder: "/load", Marks: h.fleet.marks.read,
		Events: check.TaskEvents(h.fleet.conn), Deaths: h.deaths.read, Run: "run", Seed: h.seed, Submitters: submitters,
		Pause: h.between(2*time.Second, 6*time.Second), Timeout: taskTimeout, Between: 2 * time.Second, Unexplained: true, Rollouts: true,
	}
	for _, n := range h.fleet.of(check.Dispatcher) {
		cfg.Dispatchers = append(cfg.Dispatchers, "http://"+n.name)
	}
	for _, host := range h.hosts {
		cfg.Hosts = append(cfg.Hosts, host.addr)
	}
	// Agents need a moment to learn the server's time and to announce themselves.
	time.Sleep(5 * time.Second)
	h.load, err = check.Start(context.Background(), cfg)
	return err
}

// endFaults ends every lasting fault.
func (h *history) endFaults() {
	h.fleet.note("all faults end")
	h.fleet.store.edit(func() { h.fleet.store.away, h.fleet.store.mute, h.fleet.store.slow = false, 0, time.Millisecond })
	for _, host := range h.hosts {
		host.setClock(0, false)
	}
	for _, n := range h.fleet.nodes {
		n.at("")
		n.set(weather{})
		n.partition(false)
		if err := n.start(); err != nil {
			h.fleet.note("%s was not started: %v", n.name, err)
		}
	}
	if len(h.overs) > 0 {
		time.Sleep(check.Slack)
	}
	for _, over := range h.overs {
		over()
	}
}

// between returns a random duration in a range.
func (h *history) between(least, most time.Duration) time.Duration {
	return least + time.Duration(h.random.Int64N(int64(most-least)))
}

func (h *history) one(of []*node) *node { return of[h.random.IntN(len(of))] }

// points are the points of the code at which processes die.
var points = map[check.Kind][]string{
	check.Dispatcher: {dispatcher.PointStored, dispatcher.PointRegistered, dispatcher.PointPublished},
	check.Worker: {
		release.PointGranted, release.PointRegistered,
		deliver.PointBegun, deliver.PointRequested, deliver.PointBeforeDone, deliver.PointAfterDone,
		collect.PointCollecting, collect.PointCollected, notify.PointBeforeNotify, notify.PointBeforeTransition,
	},
	check.Agent: {
		agent.CrashReceived, operate.CrashBeforeExec, operate.CrashAfterSpawn, operate.CrashBeforeDone, operate.CrashAfterDone,
		agent.CrashAfterReceipt,
	},
}

// faults are the faults of a history. Each returns a function that ends the fault.
var faults = []struct {
	weight int
	do     func(*history) (back func())
}{
	{3, (*history).cut},
	{2, (*history).disconnect},
	{3, (*history).crash},
	{5, (*history).crashAtPoint},
	{1, (*history).restart},
	{2, (*history).badWeather},
	{1, (*history).storeAway},
	{2, (*history).storeMute},
	{2, (*history).failOver},
	{1, (*history).stepStore},
	{2, (*history).stepWithoutAgent},
	{2, (*history).wrongClock},
	{2, (*history).wakeWithWrongClock},
	{1, (*history).losePower},
	{3, (*history).cloneAgent},
}

// randomFaults is the script of an ordinary history.
func randomFaults(h *history) {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	for range 2 + h.random.IntN(4) {
		time.Sleep(h.between(0, 5*time.Second))
		draw := h.random.IntN(total)
		for _, f := range faults {
			if draw -= f.weight; draw < 0 {
				back := f.do(h)
				time.Sleep(h.duration())
				back()
				break
			}
		}
	}
}

// duration returns the duration of a fault, which sometimes exceeds the timeout of
// tasks.
func (h *history) duration() time.Duration {
	const longEvery = 8
	if h.random.IntN(longEvery) == 0 {
		return h.between(taskTimeout, 2*taskTimeout)
	}
	return h.between(time.Second, 12*time.Second)
}

func (h *history) cut() (back func()) {
	n := h.one(h.fleet.nodes)
	h.fleet.note("%s is cut off", n.name)
	n.partition(true)
	return func() { h.fleet.note("%s is back", n.name); n.partition(false) }
}

func (h *history) disconnect() (back func()) {
	n := h.one(h.fleet.nodes)
	h.fleet.note("%s loses its connection", n.name)
	n.disconnect()
	return func() {}
}

func (h *history) crash() (back func()) {
	n := h.one(h.fleet.nodes)
	h.fleet.note("%s dies", n.name)
	n.crash()
	return func() { h.restarted(n) }
}

func (h *history) restarted(n *node) {
	n.at("")
	if n.running() != nil {
		return
	}
	h.fleet.note("%s starts", n.name)
	if err := n.start(); err != nil {
		h.fleet.note("%s was not started: %v", n.name, err)
	}
}

func (h *history) crashAtPoint() (back func()) {
	n := h.one(h.fleet.nodes)
	all := points[n.kind]
	point := all[h.random.IntN(len(all))]
	h.fleet.note("%s will die at %s", n.name, point)
	n.at(point)
	return func() { h.restarted(n) }
}

func (h *history) restart() (back func()) {
	n := h.one(h.fleet.nodes)
	h.fleet.note("%s stops", n.name)
	n.shutDown()
	return func() { h.restarted(n) }
}

func (h *history) badWeather() (back func()) {
	h.fleet.note("messages are lost, late and doubled")
	for _, n := range h.fleet.nodes {
		n.set(weather{lost: 0.1, twice: 0.1, late: 0.2, lateBy: 8 * time.Second})
	}
	return func() {
		h.fleet.note("messages arrive")
		for _, n := range h.fleet.nodes {
			n.set(weather{})
		}
	}
}

func (h *history) storeAway() (back func()) {
	h.fleet.note("the store is away")
	h.fleet.store.edit(func() { h.fleet.store.away = true })
	return func() {
		h.fleet.note("the store is back")
		h.fleet.store.edit(func() { h.fleet.store.away = false })
	}
}

func (h *history) storeMute() (back func()) {
	h.fleet.note("the store is slow and its answers are lost")
	h.fleet.store.edit(func() { h.fleet.store.mute, h.fleet.store.slow = 0.3, 2*time.Second })
	return func() {
		h.fleet.store.edit(func() { h.fleet.store.mute, h.fleet.store.slow = 0, time.Millisecond })
	}
}

// failOver lets the store lose the writes that no replica had.
func (h *history) failOver() (back func()) {
	h.overs = append(h.overs, h.load.Failover())
	h.fleet.note("the replica of the store is cut off")
	if err := h.fleet.store.cutReplica(); err != nil {
		h.fleet.note("no replica: %v", err)
		return func() {}
	}
	return func() {
		h.fleet.note("the store fails over")
		if err := h.fleet.store.failOver(); err != nil {
			h.fleet.note("no fail-over: %v", err)
		}
	}
}

// stepStore sets the store's clock.
func (h *history) stepStore() (back func()) {
	step := h.between(-2*time.Hour, 30*time.Minute)
	h.step(step)
	return func() {}
}

func (h *history) step(by time.Duration) {
	h.fleet.note("the store's clock steps by %s", by)
	if by < 0 {
		h.load.StepBack()
	}
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.fleet.step += by
}

// stepWithoutAgent sets the store's clock back while an agent is down that has
// accepted a command, so that only the sweep can end its task.
func (h *history) stepWithoutAgent() (back func()) {
	n := h.one(h.fleet.of(check.Agent))
	h.fleet.note("%s will die at %s", n.name, agent.CrashReceived)
	n.at(agent.CrashReceived)
	time.Sleep(h.between(2*time.Second, 10*time.Second))
	// A step of the clock may double the time of a task.
	over := h.load.Failover()
	h.step(-h.between(10*time.Minute, 2*time.Hour))
	time.Sleep(2 * taskTimeout)
	over()
	time.Sleep(check.Slack + taskTimeout)
	return func() { h.restarted(n) }
}

func (h *history) wrongClock() (back func()) {
	host, jump, stopped := h.hosts[h.random.IntN(len(h.hosts))], h.between(-2*time.Hour, 2*time.Hour), h.random.IntN(3) == 0
	h.fleet.note("the clock of host %s is off by %s, stopped: %t", host.addr, jump, stopped)
	host.setClock(jump, stopped)
	return func() {
		if h.random.IntN(2) == 0 {
			h.fleet.note("the clock of host %s is right", host.addr)
			host.setClock(0, false)
		}
	}
}

// wakeWithWrongClock kills an agent after it received a command and before it executed it.
// It restarts the agent after the command's deadline, while the host's clock is so far behind
// that the command still seems to be in time.
func (h *history) wakeWithWrongClock() (back func()) {
	n := h.one(h.fleet.of(check.Agent))
	h.fleet.note("%s will die at %s", n.name, agent.CrashReceived)
	n.at(agent.CrashReceived)
	down := h.between(taskTimeout*3/2, taskTimeout*5/2)
	behind := down - h.between(0, 10*time.Second)
	time.Sleep(down)
	return func() {
		h.fleet.note("the clock of host %s is behind by %s", n.host.addr, behind)
		n.host.setClock(-behind, false)
		h.restarted(n)
		time.Sleep(5 * time.Second)
		n.host.setClock(0, false)
	}
}

func (h *history) losePower() (back func()) {
	n := h.one(h.fleet.of(check.Agent))
	h.fleet.note("host %s loses power", n.host.addr)
	from := time.Now()
	n.crash()
	n.host.losePower()
	h.deaths.add(check.Loss{Span: check.Span{From: from, Until: time.Now()}, Host: n.host.addr})
	return func() { h.restarted(n) }
}

// cloneAgent starts a copy of a host with a copy of its agent.
func (h *history) cloneAgent() (back func()) {
	n := h.one(h.fleet.of(check.Agent))
	c := n.clone()
	h.fleet.note("a copy of %s starts", n.name)
	if err := c.start(); err != nil {
		h.fleet.note("%v", err)
	}
	time.Sleep(h.between(10*time.Second, 40*time.Second))
	return func() {
		h.fleet.note("the copy of %s dies", n.name)
		c.crash()
	}
}

// clone returns a node that is not in the fleet's list.
func (n *node) clone() *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &node{fleet: n.fleet, name: n.name + "-copy", kind: n.kind, host: n.host.clone()}
	c.dir = filepath.Join(n.fleet.dir, fmt.Sprintf("%s-%d", c.name, time.Now().UnixNano()))
	if err := copyFolder(n.dir, c.dir); err != nil {
		n.fleet.note("%s: %v", c.name, err)
	}
	return c
}

// deaths are the times at which hosts lost power.
type deaths struct {
	mu  sync.Mutex
	all []check.Loss
}

func (d *deaths) add(l check.Loss) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, l)
}

func (d *deaths) read() []check.Loss {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}
