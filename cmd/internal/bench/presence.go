package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/simulate"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// Presence is the benchmark of idle hosts and open tasks in Redis: announcements, lookups,
// lists and the sweep. It calls the store as dispatchers and workers do, but sequentially.
type Presence struct {
	Config
	Hosts int
	Areas int // number of cloud areas; hosts are distributed evenly
	Tasks int // number of open tasks
}

// Validate reports all invalid settings.
func (p Presence) Validate() error {
	return errors.Join(p.Config.Validate(), checkSizes("--hosts", p.Hosts), atLeast("--areas", p.Areas, 1), atLeast("--tasks", p.Tasks, 1))
}

// step holds the measurements of one kind of call.
type step struct {
	what         string
	calls, units int
	took, redis  time.Duration // total duration, and processor time of Redis
	bytes        int           // memory growth of Redis
}

// standing is one run of the [Presence] benchmark.
type standing struct {
	Presence
	lab   *lab
	store *stores.Redis
	steps []step
}

// Run runs the benchmark.
func (p Presence) Run(ctx context.Context) (Report, error) {
	return inLab(ctx, p.Config, func(l *lab) ([]*Table, error) {
		store, err := l.openStore(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { _ = store.Close() }() // the data of the benchmark is not needed afterwards
		s := &standing{Presence: p, lab: l, store: store}
		if err := errors.Join(s.hosts(ctx), s.sweep(ctx)); err != nil {
			return nil, err
		}
		return []*Table{s.table()}, nil
	})
}

const (
	presenceCall = 500  // announcements per Announce, as in a worker
	lookupCall   = 256  // hosts per Presences, the size of a chunk
	listCall     = 1000 // hosts per HostPage
	dueCall      = 32   // visits per Due, as in a sweep round
	overdueShare = 100  // every overdueShare-th task is overdue
)

func (s *standing) hosts(ctx context.Context) error {
	batches := (s.Hosts + presenceCall - 1) / presenceCall
	announce := func(ctx context.Context, i int) (int, error) {
		as := make([]taskstore.Announcement, 0, presenceCall)
		for n := i * presenceCall; n < min((i+1)*presenceCall, s.Hosts); n++ {
			as = append(as, s.announcement(n))
		}
		return len(as), s.store.Announce(ctx, as)
	}
	read := func(ctx context.Context, i int) (int, error) {
		hosts := make([]procfleet.Host, lookupCall)
		for n := range hosts {
			hosts[n] = s.host((i*lookupCall + n) * 7919 % s.Hosts)
		}
		_, err := s.store.Presences(ctx, hosts)
		return lookupCall, err
	}
	var after procfleet.Host
	list := func(ctx context.Context, _ int) (int, error) {
		page, err := s.store.HostPage(ctx, after, listCall)
		if len(page) > 0 {
			after = page[len(page)-1].Host
		}
		return len(page), err
	}
	again := min(batches, 400)
	return errors.Join(
		s.measure(ctx, "announce hosts that are new", batches, announce),
		s.measure(ctx, "announce hosts again", again, announce),
		s.measure(ctx, "read presences of hosts", 1000, read),
		s.measure(ctx, "list hosts", min(200, (s.Hosts+listCall-1)/listCall), list))
}

func (s *standing) host(n int) procfleet.Host {
	h, err := procfleet.NewHost(procfleet.CloudArea(n%s.Areas), simulate.Address(n).String())
	if err != nil {
		panic(err) // all these addresses are valid
	}
	return h
}

func (s *standing) announcement(n int) taskstore.Announcement {
	return taskstore.Announcement{
		Host: s.host(n), AgentID: "agent-" + strconv.Itoa(n), Instance: "instance-" + strconv.Itoa(n),
		Version: "simulated", OS: "linux", Arch: "amd64", StartedAt: time.Unix(1_700_000_000, 0).UTC(),
	}
}

// sweep measures Due among open tasks, first when no task is due, then when some are.
func (s *standing) sweep(ctx context.Context) error {
	ids := make([]procfleet.TaskID, 0, s.Tasks)
	create := func(ctx context.Context, i int) (int, error) {
		id, err := createTask(ctx, s.store, procfleet.ActionStatus, s.host(i%s.Hosts))
		ids = append(ids, id)
		return 1, err
	}
	later := func(ctx context.Context, i int) (int, error) {
		return 1, s.store.Revisit(ctx, taskstore.NextVisit{Task: ids[i], After: taskstore.MaxVisit})
	}
	due := func(ctx context.Context, i int) (int, error) {
		_, err := s.store.Due(ctx, i%taskstore.SweepShards, dueCall)
		return 1, err
	}
	overdue := max(1, s.Tasks/overdueShare)
	settle := func(ctx context.Context, i int) (int, error) {
		found, err := s.store.Due(ctx, i%taskstore.SweepShards, dueCall)
		for _, visit := range found {
			if err == nil {
				err = s.store.Settle(ctx, visit)
			}
		}
		return len(found), err
	}
	rounds := taskstore.SweepShards * 20
	return errors.Join(
		s.measure(ctx, "store tasks on one host", s.Tasks, create),
		s.measure(ctx, "postpone a visit", s.Tasks, later),
		s.measure(ctx, "query due tasks, none is due", rounds, due),
		s.measure(ctx, "make a visit due", overdue, func(ctx context.Context, i int) (int, error) {
			return 1, s.store.Revisit(ctx, taskstore.NextVisit{Task: ids[i*(s.Tasks/overdue)]})
		}),
		s.measure(ctx, "settle due tasks, 1 % are due", taskstore.SweepShards*(1+overdue/dueCall/taskstore.SweepShards+1), settle))
}

// measure makes the given number of sequential calls and records them as a step. call
// returns the number of objects that it processed.
func (s *standing) measure(ctx context.Context, what string, calls int, call func(ctx context.Context, i int) (int, error)) error {
	before, used, begun := s.memory(ctx), s.redisTime(), time.Now()
	out := step{what: what, calls: calls}
	for i := range calls {
		n, err := call(ctx, i)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		out.units += n
	}
	out.took, out.redis, out.bytes = time.Since(begun), s.redisTime()-used, max(0, s.memory(ctx)-before)
	s.steps = append(s.steps, out)
	s.lab.Log.WithFields(logrus.Fields{"step": what, "took_ms": out.took.Milliseconds(), "units": out.units}).Info("measured")
	return nil
}

// memory returns the bytes of memory that Redis uses for data, or 0 if unknown.
func (s *standing) memory(ctx context.Context) int {
	for line := range strings.Lines(s.lab.redis.Info(ctx, "memory").Val()) {
		if text, ok := strings.CutPrefix(line, "used_memory:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return 0
}

// redisTime returns the processor time of Redis, or 0 if the benchmark did not start it.
func (s *standing) redisTime() time.Duration { return s.lab.plant.cpu()[redisServer] }

func (s *standing) table() *Table {
	t := &Table{
		Title:   fmt.Sprintf("Standing: %s hosts in %s cloud areas, %s open tasks", thousands(s.Hosts), thousands(s.Areas), thousands(s.Tasks)),
		Columns: []string{"what", "calls", "of", "ms each call", "µs each", "Redis CPU, µs each", "bytes each"},
		Notes: []string{fmt.Sprintf("Calls are sequential. A call announces %d hosts of all areas, reads the presences of %d hosts, as for a chunk, "+
			"lists %d hosts, or queries up to %d due tasks of one of %d shards. Redis's processor time is measured with --start. Bytes are the growth of used_memory.",
			presenceCall, lookupCall, listCall, dueCall, taskstore.SweepShards)},
	}
	for _, step := range s.steps {
		micros := func(d time.Duration) float64 {
			return float64(d.Microseconds()) / float64(max(1, step.units))
		}
		kept := any("none")
		if bytes := step.bytes / max(1, step.units); bytes > 0 {
			kept = bytes
		}
		t.add(step.what, step.calls, step.units, ms(step.took)/float64(step.calls), micros(step.took), micros(step.redis), kept)
	}
	return t
}
