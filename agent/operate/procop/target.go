package procop

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agent/supervise"
	"github.com/procfleet/procfleet/agentproto"
)

// target is the process that a spec describes, as the latest search found it.
type target struct {
	host  *Host
	spec  *agentproto.Spec
	known Knowledge
	args  *regexp.Regexp // compiled from the spec; nil = not yet, or the spec has no pattern
	seen  proc.Probe     // what the latest search found

	// began and beganTicks are the time before the command that starts the process:
	// a younger process was started by it.
	began      time.Time
	beganTicks uint64
	leader     proc.Identity // of that command; members of its group may be the process
}

// look searches for the process. If that search is the first to observe that the
// known process has ended, a look-alike may have run beside it until now and must
// not be accepted as its successor: the search is repeated with that knowledge.
func (t *target) look(ctx context.Context) {
	t.search(ctx)
	if main := t.known.Main; !t.known.Watched || main.IsZero() || !t.lookAlike() || proc.Alive(main) {
		return
	}
	if now, err := proc.NowTicks(); err == nil {
		t.known.AliveAt = now
	}
	t.search(ctx)
}

func (t *target) search(ctx context.Context) {
	spec, h := t.spec, t.host
	if t.args == nil {
		var err error
		if t.args, err = procspec.CompileArgs(spec); err != nil {
			t.seen = proc.Probe{Verdict: proc.Uncertain, Evidence: err.Error()}
			return
		}
	}
	if h.Claims.Conflict(t.known.Main, spec.Key, spec.PidPath != "") != "" {
		t.known.Main = proc.Identity{} // another key has claimed it meanwhile
	}
	if !h.Searches.Acquire(ctx) {
		t.seen = proc.Probe{Verdict: proc.Uncertain, Evidence: "the agent is stopping"}
		return
	}
	defer h.Searches.Release()
	t.seen = h.Finder.Find(ctx, proc.Target{
		ProcName: spec.ProcName, SetupPath: spec.SetupPath, PidPath: spec.PidPath, Account: spec.Account, Args: t.args,
		Known: t.known.Main, Instances: procspec.Instances(spec), Mates: t.known.Instances,
		StartedAfter: t.beganTicks, PidFileAfter: t.began, Aliases: t.known.Aliases,
		Exclude: h.Groups.excluding(t.leader.PID), Mark: h.Mark(spec), Command: t.leader, Foreign: t.foreign, Holder: t.holder,
		Taken: func(pid int) bool { return h.Claims.OtherHas(pid, spec.Key) },
	})
	if t.seen.Alias != "" {
		// The engine shares the list with other work.
		t.known.Aliases = append(slices.Clip(t.known.Aliases), t.seen.Alias)
	}
}

// foreign matches processes that the search must skip: those of other keys and,
// where a pid file names the process, those that ran beside it.
func (t *target) foreign(p proc.Process, mark string) bool {
	switch {
	case t.host.Claims.OtherHas(p.PID, t.spec.Key), t.host.Claims.otherInstance(mark, t.spec):
		return true
	case t.spec.PidPath == "", mark == t.host.Mark(t.spec):
		return false
	}
	return p.BootID == t.host.BootID && p.Start <= t.known.AliveAt
}

// holder returns the other key that supervises a process, "" if there is none. A
// key with the same pid file does not count: the file belongs to it as well, and a
// start must not move it aside.
func (t *target) holder(p proc.Process) string {
	key := t.host.Claims.Conflict(p.Identity, t.spec.Key, true)
	if key == "" {
		return ""
	}
	if pidPath, supervised := t.host.Engine.Supervised(key); !supervised || filepath.Clean(pidPath) == filepath.Clean(t.spec.PidPath) {
		return ""
	}
	return key
}

// main returns the process, as the latest search found it; zero = none. It is
// never a look-alike.
func (t *target) main() proc.Identity {
	if t.lookAlike() {
		return proc.Identity{}
	}
	return t.found()
}

// found returns the process or, failing that, the look-alike.
func (t *target) found() proc.Identity {
	if t.seen.Verdict != proc.Running || len(t.seen.Procs) == 0 {
		return proc.Identity{}
	}
	return t.seen.Procs[0].Identity
}

// lookAlike reports whether the search found only a process with the right name
// and place, which the pid file of the spec does not name. It may be the process
// or somebody else's: reason enough to not start a second one, but not to signal
// it or to keep it alive.
func (t *target) lookAlike() bool {
	return t.seen.Verdict == proc.Running && t.seen.Searched && !t.seen.Marked && t.spec.PidPath != ""
}

// proven reports whether a pid file or a mark, rather than a search by name and
// place, makes the process the key's.
func (t *target) proven() bool { return t.spec.PidPath != "" || t.seen.Marked }

// sight returns what the latest search means to the process's state machine.
func (t *target) sight() supervise.Observation {
	switch t.seen.Verdict {
	case proc.Running:
		return supervise.Alive
	case proc.Stopped:
		return supervise.Gone
	case proc.Uncertain:
	}
	return supervise.Indeterminate
}

// ready searches for the process, and refuses to continue if its state is
// indeterminate or another key has claimed it.
func (t *target) ready(ctx context.Context) *Completion {
	t.look(ctx)
	if ctx.Err() != nil {
		return new(interrupted())
	}
	if t.seen.Verdict == proc.Uncertain {
		return new(Refused("state uncertain: " + t.seen.Evidence))
	}
	return t.contested(t.host.Claims.Conflict(t.main(), t.spec.Key, t.proven()))
}

// claim claims the process for the key, unless another key has it.
func (t *target) claim() *Completion {
	return t.contested(t.host.Claims.Claim(t.main(), t.spec.Key, t.proven()))
}

// claimed completes work that ends with the process being the key's.
func (t *target) claimed() Completion {
	if bad := t.claim(); bad != nil {
		return *bad
	}
	return Succeeded()
}

// contested refuses to continue if another key has the process.
func (t *target) contested(other string) *Completion {
	if other == "" {
		return nil
	}
	c := Refused(fmt.Sprintf("pid %d belongs to key %s", t.main().PID, other))
	t.seen = proc.Probe{Verdict: proc.Uncertain, Evidence: c.Message}
	return &c
}

// instances returns all instances that the latest search found; nil unless the
// process has several.
func (t *target) instances() []proc.Identity {
	if !procspec.HasInstances(t.spec) || t.main().IsZero() {
		return nil
	}
	return identities(t.seen.Procs)
}

// all returns the processes that a stop ends: the main one, and the other instances.
func (t *target) all() []proc.Identity {
	if procspec.HasInstances(t.spec) {
		return t.instances()
	}
	return []proc.Identity{t.main()}
}

// complete reports whether as many instances run as the spec wants. If was had to
// be replaced, only those that were started since count.
func (t *target) complete(was proc.Identity) bool {
	if !procspec.HasInstances(t.spec) {
		return true
	}
	n := 0
	for _, id := range t.instances() {
		if was.IsZero() || id.Start >= t.beganTicks {
			n++
		}
	}
	return n >= t.spec.Instances
}

// lookAfresh searches without preferring the known process if a pid file tells
// which of several candidates is the process: for a moment a launcher lives beside
// its daemon.
func (t *target) lookAfresh(ctx context.Context) {
	if procspec.HasInstances(t.spec) {
		t.look(ctx)
		return
	}
	known := t.known.Main
	if t.spec.PidPath != "" {
		t.known.Main = proc.Identity{}
	}
	t.look(ctx)
	t.known.Main = known
	if t.main().IsZero() && proc.Alive(known) {
		t.look(ctx) // no pid file names another one
	}
}

// killScope covers what a kill ends together with the process. Programs that only
// their arguments distinguish may have been started by one shell and share its
// session.
func (t *target) killScope() proc.KillScope {
	return proc.KillScope{Key: t.host.Mark(t.spec), LedOnly: t.spec.ArgsPattern != "", Protected: func(pid int) bool {
		return t.host.Groups.has(pid) || t.host.Claims.OtherHas(pid, t.spec.Key)
	}}
}

// orphans lists the pids that the process left behind; "" if there are none or
// they cannot be listed.
func (t *target) orphans() string {
	found, err := t.host.Finder.Orphans(t.killScope())
	if err != nil {
		return ""
	}
	var pids []string
	for _, p := range found {
		if !t.host.Groups.has(p.PGID) {
			pids = append(pids, strconv.Itoa(p.PID))
		}
	}
	if len(pids) == 0 {
		return ""
	}
	return "pid " + strings.Join(pids, ", ")
}

func identities(procs []proc.Process) []proc.Identity {
	var ids []proc.Identity
	for _, p := range procs {
		ids = append(ids, p.Identity)
	}
	return ids
}

func anyAlive(ids []proc.Identity) bool { return slices.ContainsFunc(ids, proc.Alive) }

// PIDList names the pids of the processes that live, or of all if none does.
func PIDList(ids []proc.Identity) string {
	var alive, all []string
	for _, id := range ids {
		all = append(all, strconv.Itoa(id.PID))
		if proc.Alive(id) {
			alive = append(alive, strconv.Itoa(id.PID))
		}
	}
	if len(alive) == 0 {
		alive = all
	}
	return strings.Join(alive, ", ")
}

// lasted reports whether a process has existed for d.
func lasted(id proc.Identity, d time.Duration) bool {
	now, err := proc.NowTicks()
	age := time.Duration(now-min(now, id.Start)) * (time.Second / proc.TicksPerSecond) //nolint:gosec // a clock of the kernel: it would take 292 years
	return err == nil && age >= d
}
