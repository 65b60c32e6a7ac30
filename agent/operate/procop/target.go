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

// target is the process of a spec and the result of the latest search for it.
type target struct {
	host  *Host
	spec  *agentproto.Spec
	known Knowledge
	args  *regexp.Regexp // compiled Spec.ArgsPattern; nil = not compiled yet, or the spec has none
	probe proc.Probe     // result of the latest search

	// began and beganTicks are the time before the start command was run: younger processes
	// were started by the command.
	began      time.Time
	beganTicks uint64
	leader     proc.Identity // leader of the start command's process group, of which the process may be a member
}

// search searches for the process. If this search is the first to observe the end of the known
// process, a look-alike may have been running all the time and must not be accepted as the
// successor: search sets known.AliveAt to the current time and repeats the search.
func (t *target) search(ctx context.Context) {
	t.searchOnce(ctx)
	if main := t.known.Main; !t.known.Watched || main.IsZero() || !t.lookAlike() || proc.Alive(main) {
		return
	}
	if now, err := proc.NowTicks(); err == nil {
		t.known.AliveAt = now
	}
	t.searchOnce(ctx)
}

func (t *target) searchOnce(ctx context.Context) {
	spec, h := t.spec, t.host
	if t.args == nil {
		var err error
		if t.args, err = procspec.CompileArgs(spec); err != nil {
			t.probe = proc.Probe{Verdict: proc.Uncertain, Evidence: err.Error()}
			return
		}
	}
	if h.Claims.Conflict(t.known.Main, spec.Key, spec.PidPath != "") != "" {
		t.known.Main = proc.Identity{} // another key has claimed the process since
	}
	if !h.Searches.Acquire(ctx) {
		t.probe = proc.Probe{Verdict: proc.Uncertain, Evidence: "the agent is stopping"}
		return
	}
	defer h.Searches.Release()
	t.probe = h.Finder.Find(ctx, proc.Target{
		ProcName: spec.ProcName, SetupPath: spec.SetupPath, PidPath: spec.PidPath, Account: spec.Account, Args: t.args,
		Known: t.known.Main, Instances: procspec.Instances(spec), Mates: t.known.Instances,
		StartedAfter: t.beganTicks, PidFileAfter: t.began, Aliases: t.known.Aliases,
		Exclude: h.Groups.excluding(t.leader.PID), Mark: h.Mark(spec), Command: t.leader, Foreign: t.foreign, Holder: t.holder,
		Claimed: func(pid int) bool { return h.Claims.OtherHas(pid, spec.Key) },
	})
	if t.probe.Alias != "" {
		// Clip the list so that append copies it: other work uses it too.
		t.known.Aliases = append(slices.Clip(t.known.Aliases), t.probe.Alias)
	}
}

// foreign matches processes that the search must skip: those of other keys and, if the spec
// has a pid file, unmarked processes that already ran while the known process did.
func (t *target) foreign(p proc.Process, mark string) bool {
	switch {
	case t.host.Claims.OtherHas(p.PID, t.spec.Key), t.host.Claims.otherInstance(mark, t.spec):
		return true
	case t.spec.PidPath == "", mark == t.host.Mark(t.spec):
		return false
	}
	return p.BootID == t.host.BootID && p.Start <= t.known.AliveAt
}

// holder returns the other key that supervises a process; "" = none. A key with the same pid
// file is ignored: the file belongs to that key as well, and a start must not rename it as
// stale.
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

// main returns the process that the latest search found, never a look-alike; zero = none.
func (t *target) main() proc.Identity {
	if t.lookAlike() {
		return proc.Identity{}
	}
	return t.found()
}

// found returns the process or, if there is none, the look-alike; zero = neither.
func (t *target) found() proc.Identity {
	if t.probe.Verdict != proc.Running || len(t.probe.Procs) == 0 {
		return proc.Identity{}
	}
	return t.probe.Procs[0].Identity
}

// lookAlike reports whether the search found only a process with the right name and path
// that the spec's pid file does not name. It may be the process or a foreign one: a second
// one must not be started, but this one must be neither signaled nor supervised.
func (t *target) lookAlike() bool {
	return t.probe.Verdict == proc.Running && t.probe.Searched && !t.probe.Marked && t.spec.PidPath != ""
}

// proven reports whether a pid file or a mark, rather than name and path alone, identifies
// the process.
func (t *target) proven() bool { return t.spec.PidPath != "" || t.probe.Marked }

// observation returns the result of the latest search for the state machine.
func (t *target) observation() supervise.Observation {
	switch t.probe.Verdict {
	case proc.Running:
		return supervise.Alive
	case proc.Stopped:
		return supervise.Gone
	case proc.Uncertain:
	}
	return supervise.Indeterminate
}

// ready searches for the process. It returns a refusal if the state of the process is
// indeterminate or another key has claimed it, else nil.
func (t *target) ready(ctx context.Context) *Completion {
	t.search(ctx)
	if ctx.Err() != nil {
		return new(interrupted())
	}
	if t.probe.Verdict == proc.Uncertain {
		return new(Refused("state uncertain: " + t.probe.Evidence))
	}
	return t.contested(t.host.Claims.Conflict(t.main(), t.spec.Key, t.proven()))
}

// claim claims the process for the key. It returns a refusal if another key's claim prevails,
// else nil.
func (t *target) claim() *Completion {
	return t.contested(t.host.Claims.Claim(t.main(), t.spec.Key, t.proven()))
}

// claimed claims the process and completes the work: with success, or with the refusal of
// claim.
func (t *target) claimed() Completion {
	if bad := t.claim(); bad != nil {
		return *bad
	}
	return Succeeded()
}

// contested returns a refusal that names other, the key that has claimed the process; nil if
// other is "".
func (t *target) contested(other string) *Completion {
	if other == "" {
		return nil
	}
	c := Refused(fmt.Sprintf("pid %d belongs to key %s", t.main().PID, other))
	t.probe = proc.Probe{Verdict: proc.Uncertain, Evidence: c.Message}
	return &c
}

// instances returns all instances that the latest search found; nil if the spec has only one.
func (t *target) instances() []proc.Identity {
	if !procspec.HasInstances(t.spec) || t.main().IsZero() {
		return nil
	}
	return identities(t.probe.Procs)
}

// all returns the processes that a stop ends: the main process or all instances.
func (t *target) all() []proc.Identity {
	if procspec.HasInstances(t.spec) {
		return t.instances()
	}
	return []proc.Identity{t.main()}
}

// complete reports whether as many instances run as the spec requires. A nonzero was is the
// process to be replaced: only instances that were started since beganTicks count then.
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

// searchByPidFile searches without the known process if the spec has a pid file, which then decides
// between candidates: a launcher and its daemon run at the same time for a moment.
func (t *target) searchByPidFile(ctx context.Context) {
	if procspec.HasInstances(t.spec) {
		t.search(ctx)
		return
	}
	known := t.known.Main
	if t.spec.PidPath != "" {
		t.known.Main = proc.Identity{}
	}
	t.search(ctx)
	t.known.Main = known
	if t.main().IsZero() && proc.Alive(known) {
		t.search(ctx) // the pid file names no other process
	}
}

// killScope selects the processes that a kill ends together with the process. For
// programs that differ only in their arguments it leaves out the session, unless the process
// leads it: one shell may have started all of them.
func (t *target) killScope() proc.KillScope {
	return proc.KillScope{Key: t.host.Mark(t.spec), LedOnly: t.spec.ArgsPattern != "", Protected: func(pid int) bool {
		return t.host.Groups.has(pid) || t.host.Claims.OtherHas(pid, t.spec.Key)
	}}
}

// orphans lists the pids of the key's orphans; "" if there are none or they cannot be listed.
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

// PIDList lists the pids of the processes that are alive, or all pids if none is.
func PIDList(ids []proc.Identity) string {
	if anyAlive(ids) {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id proc.Identity) bool { return !proc.Alive(id) })
	}
	var pids []string
	for _, id := range ids {
		pids = append(pids, strconv.Itoa(id.PID))
	}
	return strings.Join(pids, ", ")
}

// lasted reports whether a process has existed for at least d.
func lasted(id proc.Identity, d time.Duration) bool {
	now, err := proc.NowTicks()
	age := time.Duration(now-min(now, id.Start)) * (time.Second / proc.TicksPerSecond) //nolint:gosec // kernel clock: overflows after 292 years
	return err == nil && age >= d
}
