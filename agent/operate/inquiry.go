package operate

import (
	"context"
	"fmt"
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
	// inquiryLimit bounds the inquiries at a time. They have slots of their own:
	// inquiries must not delay a stop.
	inquiryLimit = 16

	// maxAnswer bounds what is shown of an answer, in bytes.
	maxAnswer = 256

	// noAnswer is shown for an answer that did not arrive in time.
	noAnswer = "timeout"
)

// question is what a command of the spec reports about the process.
type question int

const (
	whichVersion question = iota
	howHealthy
	questions // how many there are
)

// line returns the command; "" = the spec has none.
func (q question) line(s *agentproto.Spec) string {
	if q == whichVersion {
		return s.VersionCmd
	}
	return s.HealthCmd
}

// answer is the end of an inquiry.
type answer struct {
	text string // one line, at most maxAnswer bytes
	ran  bool   // the command ran, even if too long; else the answer says nothing about the process
	ok   bool   // it exited with 0
	at   time.Time
}

// inquiry is one run of a command that reports about a process.
type inquiry struct {
	line   string
	over   chan struct{} // closed when answer may be read without a lock
	answer answer        // at is zero while the command runs
}

// inquiries runs the commands that report about processes, and remembers their answers.
// It runs one command at a time for each process.
type inquiries struct {
	engine *Engine
	slots  procop.Slots

	mu sync.Mutex
	of map[proc.Identity]*dossier
}

// dossier is what is known of one process.
type dossier struct {
	turn       procop.Slots // of one
	latest     [questions]*inquiry
	known      [questions]string // the latest answers
	executable string            // that the process ran when its version was checked last
}

func newInquiries(e *Engine) *inquiries {
	return &inquiries{engine: e, slots: make(procop.Slots, inquiryLimit), of: map[proc.Identity]*dossier{}}
}

// dossier needs mu.
func (i *inquiries) dossier(id proc.Identity) *dossier {
	d := i.of[id]
	if d == nil {
		d = &dossier{turn: make(procop.Slots, 1)}
		i.of[id] = d
	}
	return d
}

// open returns the inquiry whose answer is valid, and begins one unless the latest one
// runs or has ended after notBefore.
func (i *inquiries) open(q question, id proc.Identity, spec *agentproto.Spec, notBefore time.Time) (in *inquiry, isNew bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d, line := i.dossier(id), q.line(spec)
	if in = d.latest[q]; in != nil && in.line == line && (in.answer.at.IsZero() || in.answer.at.After(notBefore)) {
		return in, false
	}
	in = &inquiry{line: line, over: make(chan struct{})}
	d.latest[q] = in
	own := *spec
	i.engine.spawn(spec.Key, "inquiry", func() { i.run(q, d, in, &own) })
	return in, true
}

// close ends an inquiry. A version command that fails says nothing about the version.
func (i *inquiries) close(q question, d *dossier, in *inquiry, a answer) {
	i.mu.Lock()
	in.answer = a
	in.answer.at = time.Now()
	close(in.over)
	changed := (q != whichVersion || a.ok) && d.known[q] != a.text
	if changed {
		d.known[q] = a.text
	}
	i.mu.Unlock()
	if changed && q == whichVersion {
		i.engine.cfg.Changed()
	}
}

// replaced reports whether a process runs another executable than at the last call.
func (i *inquiries) replaced(id proc.Identity, executable string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.dossier(id)
	was := d.executable
	d.executable = executable
	return was != "" && was != executable
}

// known returns the latest answers about a process; "" = there is none.
func (i *inquiries) known(id proc.Identity) (version, health string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if d := i.of[id]; d != nil {
		return d.known[whichVersion], d.known[howHealthy]
	}
	return "", ""
}

// prune removes processes that are gone.
func (i *inquiries) prune(gone func(proc.Identity) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id := range i.of {
		if gone(id) {
			delete(i.of, id)
		}
	}
}

// ask returns what a command of the spec reports about a running process, or has
// reported up to maxAge ago. It waits as long as ctx. The command continues meanwhile,
// and its answer is used by later calls.
func (i *inquiries) ask(ctx context.Context, q question, id proc.Identity, spec *agentproto.Spec, maxAge time.Duration) answer {
	in, _ := i.open(q, id, spec, time.Now().Add(-maxAge))
	select {
	case <-in.over:
		return in.answer
	case <-ctx.Done():
		return answer{text: noAnswer}
	}
}

// both returns version and health of a running process. Where the spec has no command
// for one, it returns what was passed.
func (i *inquiries) both(ctx context.Context, id proc.Identity, spec *agentproto.Spec, version, health string) (newVersion, newHealth string) {
	for q, text := range [questions]*string{whichVersion: &version, howHealthy: &health} {
		if question(q).line(spec) != "" {
			*text = i.ask(ctx, question(q), id, spec, i.engine.cfg.Timing.AnswerAge).text
		}
	}
	return version, health
}

// refreshVersion runs the version command of a process if it has not run since the
// process started, since the command or the executable changed, or for
// Timing.VersionAge. It does not wait, and reports whether it runs the command.
func (i *inquiries) refreshVersion(id proc.Identity, spec *agentproto.Spec) bool {
	if spec.VersionCmd == "" || id.IsZero() {
		return false
	}
	notBefore := time.Now().Add(-i.engine.cfg.Timing.VersionAge)
	if i.replaced(id, executable(id)) {
		notBefore = time.Now()
	}
	_, isNew := i.open(whichVersion, id, spec, notBefore)
	return isNew
}

// executable returns the program that a process runs; "" = unknown.
func executable(id proc.Identity) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", id.PID))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(path, " (deleted)") // the file was replaced, the process was not
}

// run carries out an inquiry. It returns when the command has ended, which may be long
// after the answer.
func (i *inquiries) run(q question, d *dossier, in *inquiry, spec *agentproto.Spec) {
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
	case <-timeout.C: // which ends the command as well
		i.close(q, d, in, answer{text: noAnswer, ran: true})
	case <-e.life.Done():
	}
	i.awaitEnd(exec, spec, in.line)
}

// awaitEnd waits until a command that timed out has ended. When the engine ends it kills
// the command, since nothing would end it later.
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

// answerOf returns the answer of a command that ended.
func answerOf(r proc.Result) answer {
	said := oneLine(r.Output)
	switch {
	case r.TimedOut:
		return answer{text: noAnswer, ran: true}
	case !r.OK():
		return answer{text: oneLine(procop.Join("failed: "+r.String(), said)), ran: true}
	case said == "":
		said = "ok"
	}
	return answer{text: said, ran: true, ok: true}
}

// oneLine returns the first line of a text that is not empty.
func oneLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			return procop.Clip(line, maxAnswer)
		}
	}
	return ""
}
