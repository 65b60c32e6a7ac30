package operate

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agent/proc"
	"github.com/procfleet/procfleet/agentproto"
)

const (
	// inquiryLimit bounds concurrent inquiries. They have slots of their own, so that they
	// do not delay a stop.
	inquiryLimit = 16

	// maxAnswer bounds the reported text of an answer, in bytes.
	maxAnswer = 256

	// noAnswer is the text of an answer that did not arrive in time.
	noAnswer = "timeout"
)

// inquiryKind is the version or the health command of a spec.
type inquiryKind int

const (
	versionInquiry inquiryKind = iota
	healthInquiry
	inquiryKinds // number of kinds
)

func (q inquiryKind) line(s *agentproto.Spec) string {
	if q == versionInquiry {
		return s.VersionCmd
	}
	return s.HealthCmd
}

// answer is the result of an inquiry.
type answer struct {
	text string // one line, at most maxAnswer bytes
	ran  bool   // the command ran, even if it timed out; false = the answer says nothing about the process
	ok   bool   // the command exited with status 0
	at   time.Time
}

// inquiry is one run of a version or health command.
type inquiry struct {
	line   string
	done   chan struct{} // closed when answer is final and may be read without a lock
	answer answer        // answer.at is zero while the command runs
}

// inquiries runs the version and health commands and caches their answers. It runs one
// command at a time for each process.
type inquiries struct {
	engine *Engine
	slots  procop.Slots

	mu     sync.Mutex
	caches map[proc.Identity]*inquiryCache
}

// inquiryCache holds the inquiries and cached answers of one process.
type inquiryCache struct {
	turn       procop.Slots // capacity 1: one command at a time
	latest     [inquiryKinds]*inquiry
	known      [inquiryKinds]string // texts of the latest answers
	executable string               // path of the executable when the version was checked last
}

func newInquiries(e *Engine) *inquiries {
	return &inquiries{engine: e, slots: make(procop.Slots, inquiryLimit), caches: map[proc.Identity]*inquiryCache{}}
}

// cache returns the cache of a process and creates it if missing. The caller holds mu.
func (i *inquiries) cache(id proc.Identity) *inquiryCache {
	d := i.caches[id]
	if d == nil {
		d = &inquiryCache{turn: make(procop.Slots, 1)}
		i.caches[id] = d
	}
	return d
}

// open returns the latest inquiry if it still runs or ended after notBefore; otherwise it
// begins a new one.
func (i *inquiries) open(q inquiryKind, id proc.Identity, spec *agentproto.Spec, notBefore time.Time) (in *inquiry, isNew bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d, line := i.cache(id), q.line(spec)
	if in = d.latest[q]; in != nil && in.line == line && (in.answer.at.IsZero() || in.answer.at.After(notBefore)) {
		return in, false
	}
	in = &inquiry{line: line, done: make(chan struct{})}
	d.latest[q] = in
	own := *spec
	i.engine.spawn(spec.Key, "inquiry", func() { i.run(q, d, in, &own) })
	return in, true
}

// close ends an inquiry. A failed version command does not change the known version.
func (i *inquiries) close(q inquiryKind, d *inquiryCache, in *inquiry, a answer) {
	i.mu.Lock()
	in.answer = a
	in.answer.at = time.Now()
	close(in.done)
	changed := (q != versionInquiry || a.ok) && d.known[q] != a.text
	if changed {
		d.known[q] = a.text
	}
	i.mu.Unlock()
	if changed && q == versionInquiry {
		i.engine.cfg.Changed()
	}
}

// replaced reports whether a process runs another executable than at the last call.
func (i *inquiries) replaced(id proc.Identity, executable string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.cache(id)
	was := d.executable
	d.executable = executable
	return was != "" && was != executable
}

// failed reports whether the latest inquiry about a process has ended without an answer.
func (i *inquiries) failed(q inquiryKind, id proc.Identity) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	in := i.cache(id).latest[q]
	return in != nil && !in.answer.at.IsZero() && !in.answer.ok
}

// known returns the cached answers about a process; "" = none.
func (i *inquiries) known(id proc.Identity) (version, health string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if d := i.caches[id]; d != nil {
		return d.known[versionInquiry], d.known[healthInquiry]
	}
	return "", ""
}

func (i *inquiries) prune(gone func(proc.Identity) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.caches, func(id proc.Identity, _ *inquiryCache) bool { return gone(id) })
}

// query returns the answer to q about a running process: a cached one that is at most maxAge
// old, or that of a new inquiry. It waits until ctx ends; the inquiry continues, and later
// calls use its answer.
func (i *inquiries) query(ctx context.Context, q inquiryKind, id proc.Identity, spec *agentproto.Spec, maxAge time.Duration) answer {
	in, _ := i.open(q, id, spec, time.Now().Add(-maxAge))
	select {
	case <-in.done:
		return in.answer
	case <-ctx.Done():
		return answer{text: noAnswer}
	}
}

// both returns the version and the health of a running process. If the spec has no command
// for one of them, both returns the passed text.
func (i *inquiries) both(ctx context.Context, id proc.Identity, spec *agentproto.Spec, version, health string) (newVersion, newHealth string) {
	for q, text := range [inquiryKinds]*string{versionInquiry: &version, healthInquiry: &health} {
		if inquiryKind(q).line(spec) != "" {
			*text = i.query(ctx, inquiryKind(q), id, spec, i.engine.cfg.Timing.AnswerAge).text
		}
	}
	return version, health
}

// refreshVersion runs the version command of a process if it has not run since the process
// started or since the command or the executable changed, or if Timing.VersionAge has passed
// since; after a command that failed, Timing.AnswerAge. It does not wait, and reports whether it
// runs the command.
func (i *inquiries) refreshVersion(id proc.Identity, spec *agentproto.Spec) bool {
	if spec.VersionCmd == "" || id.IsZero() {
		return false
	}
	age := i.engine.cfg.Timing.VersionAge
	if i.failed(versionInquiry, id) {
		age = min(age, i.engine.cfg.Timing.AnswerAge)
	}
	notBefore := time.Now().Add(-age)
	if i.replaced(id, executable(id)) {
		notBefore = time.Now()
	}
	_, isNew := i.open(versionInquiry, id, spec, notBefore)
	return isNew
}

// executable returns the path of the executable of a process; "" = unknown.
func executable(id proc.Identity) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", id.PID))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(path, " (deleted)") // the file was replaced, the process was not
}

// run carries out an inquiry. It returns when the command has ended, which may be long after
// the answer if the command timed out.
func (i *inquiries) run(q inquiryKind, d *inquiryCache, in *inquiry, spec *agentproto.Spec) {
	e := i.engine
	if !d.turn.Acquire(e.life) {
		return
	}
	defer d.turn.Release()
	if !i.slots.Acquire(e.life) {
		return
	}
	defer i.slots.Release()
	mark, limit := e.host.Mark(spec), min(procspec.OpTimeout(spec), e.cfg.Timing.Inquiry)
	output := e.host.Outputs.Path(mark)
	defer e.host.Outputs.Discard(output)
	exec, err := e.host.Runner.Start(e.life, proc.Command{
		Shell: proc.Shell(spec.Shell), Line: in.line, Dir: spec.SetupPath, Account: procspec.Account(spec), Env: spec.Env,
		LoginProfile: !spec.NoProfile, OutputPath: output, Key: mark, Op: "inquiry", Timeout: limit, Contained: true,
	})
	if err != nil {
		i.close(q, d, in, answer{text: oneLine("not run: " + err.Error())})
		return
	}
	defer e.host.Groups.Add(exec.Identity().PID)()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-exec.Done():
		i.close(q, d, in, answerOf(exec.Result()))
		return
	case <-timeout.C: // proc.Command.Timeout ends the command
		i.close(q, d, in, answer{text: noAnswer, ran: true})
	case <-e.life.Done():
	}
	i.awaitEnd(exec, spec, in.line)
}

// awaitEnd waits until a command that timed out has ended. When the engine ends, awaitEnd
// kills the command, since nothing would kill it later.
func (i *inquiries) awaitEnd(exec *proc.Execution, spec *agentproto.Spec, line string) {
	e := i.engine
	hanging := time.NewTimer(proc.KillGrace + e.cfg.Timing.KillWait)
	defer hanging.Stop()
	for {
		select {
		case <-exec.Done():
			return
		case <-hanging.C:
			e.cfg.Emit(agentproto.Event{
				Kind: agentproto.EventCommandHanging, Key: spec.Key, Namespace: spec.Namespace, Name: spec.Name, ProcName: spec.ProcName,
				PID:     exec.Identity().PID,
				Message: fmt.Sprintf("command %s, pid %d, does not end by SIGKILL; version and health commands of the process wait until it does", procop.Clip(line, maxAnswer), exec.Identity().PID),
			})
		case <-e.life.Done():
			_ = proc.KillGroup(context.Background(), exec.Identity(), 0)
			return
		}
	}
}

// answerOf returns the answer of a command that has ended.
func answerOf(r proc.Result) answer {
	output := oneLine(r.Output)
	switch {
	case r.TimedOut:
		return answer{text: noAnswer, ran: true}
	case !r.OK():
		return answer{text: oneLine(procop.Join("failed: "+r.String(), output)), ran: true}
	case output == "":
		output = "ok"
	}
	return answer{text: output, ran: true, ok: true}
}

// oneLine returns the first line of a text that is not empty, cut to maxAnswer bytes.
func oneLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			return procop.Clip(line, maxAnswer)
		}
	}
	return ""
}
