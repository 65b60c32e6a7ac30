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
	// being asked about must not keep a process from being stopped.
	inquiryLimit = 16

	// maxAnswer bounds what is shown of an answer, in bytes.
	maxAnswer = 256

	// inTheDark is shown for an answer that did not come in time.
	inTheDark = "timeout"
)

// question is something that a command of the spec tells of the process.
type question int

const (
	whichVersion question = iota
	howHealthy
	questions // how many there are
)

// line is the command; "" = the spec has none.
func (q question) line(s *agentproto.Spec) string {
	if q == whichVersion {
		return s.VersionCmd
	}
	return s.HealthCmd
}

// answer is how an inquiry ended.
type answer struct {
	text string // one line, at most maxAnswer bytes
	ran  bool   // the command ran, be it too long; else it says nothing of the process
	ok   bool   // it exited with 0
	at   time.Time
}

// inquiry is one run of a command that asks about a process.
type inquiry struct {
	line   string
	over   chan struct{} // closed once answer may be read
	answer answer
}

func (in *inquiry) isOver() bool {
	select {
	case <-in.over:
		return true
	default:
		return false
	}
}

// inquiries remembers what was asked about each process and what the answer
// was. A process is asked one thing at a time.
type inquiries struct {
	slots procop.Slots

	mu sync.Mutex
	of map[proc.Identity]*dossier
}

// dossier is what is known of one process.
type dossier struct {
	turn   procop.Slots // of one
	latest [questions]*inquiry
	known  [questions]string // the latest answers
	// executable is the program that the process ran when its version was
	// last looked at.
	executable string
}

func newInquiries() *inquiries {
	return &inquiries{slots: make(procop.Slots, inquiryLimit), of: map[proc.Identity]*dossier{}}
}

// open returns the inquiry whose answer counts: one that is under way or has
// ended after notBefore; else a new one, which the caller must carry out when
// its turn in the dossier comes.
func (i *inquiries) open(q question, id proc.Identity, line string, notBefore time.Time) (in *inquiry, d *dossier, isNew bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	d = i.of[id]
	if d == nil {
		d = &dossier{turn: make(procop.Slots, 1)}
		i.of[id] = d
	}
	in = d.latest[q]
	if in != nil && in.line == line && (!in.isOver() || in.answer.at.After(notBefore)) {
		return in, d, false
	}
	in = &inquiry{line: line, over: make(chan struct{})}
	d.latest[q] = in
	return in, d, true
}

// close ends an inquiry, and reports whether it changed what is known. A
// version command that fails says nothing of the version.
func (i *inquiries) close(q question, d *dossier, in *inquiry, a answer) (changed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	in.answer = a
	in.answer.at = time.Now()
	close(in.over)
	if q == whichVersion && !a.ok || d.known[q] == a.text {
		return false
	}
	d.known[q] = a.text
	return true
}

// replaced reports whether a process runs another executable than when it was
// last looked at.
func (i *inquiries) replaced(id proc.Identity, executable string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.of[id]
	if d == nil {
		d = &dossier{turn: make(procop.Slots, 1)}
		i.of[id] = d
	}
	was := d.executable
	d.executable = executable
	return was != "" && was != executable
}

// known are the latest answers about a process; "" = never asked.
func (i *inquiries) known(id proc.Identity) (version, health string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if d := i.of[id]; d != nil {
		return d.known[whichVersion], d.known[howHealthy]
	}
	return "", ""
}

// prune forgets processes that are gone.
func (i *inquiries) prune(gone func(proc.Identity) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id := range i.of {
		if gone(id) {
			delete(i.of, id)
		}
	}
}

// ask returns what a command of the spec says of a running process, or has said
// up to maxAge ago. It waits as long as ctx; the command goes on meanwhile, and
// its answer is there for who asks next.
func (e *Engine) ask(ctx context.Context, q question, id proc.Identity, spec *agentproto.Spec, maxAge time.Duration) answer {
	in, d, isNew := e.inquiries.open(q, id, q.line(spec), time.Now().Add(-maxAge))
	if isNew {
		spec := *spec
		e.beside(spec.Key, "inquiry", func() { e.carryOutInquiry(q, d, in, &spec) })
	}
	select {
	case <-in.over:
		return in.answer
	case <-ctx.Done():
		return answer{text: inTheDark}
	}
}

// keepVersion asks a process for its version if that was not done since it
// started, its version command or its executable changed, or for
// Timing.VersionAge. It waits for no answer, and reports whether it asks.
func (e *Engine) keepVersion(id proc.Identity, spec *agentproto.Spec) (asks bool) {
	if spec.VersionCmd == "" || id.IsZero() {
		return false
	}
	notBefore := time.Now().Add(-e.cfg.Timing.VersionAge)
	if e.inquiries.replaced(id, executable(id)) {
		notBefore = time.Now()
	}
	in, d, isNew := e.inquiries.open(whichVersion, id, spec.VersionCmd, notBefore)
	if isNew {
		spec := *spec
		e.beside(spec.Key, "inquiry", func() { e.carryOutInquiry(whichVersion, d, in, &spec) })
	}
	return isNew
}

// executable is the program that a process runs now; "" = unknown.
func executable(id proc.Identity) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", id.PID))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(path, " (deleted)") // the file was replaced, which the process was not
}

// inquire carries out an inquiry. It returns once the command is gone, which
// may be long after the answer.
func (e *Engine) carryOutInquiry(q question, d *dossier, in *inquiry, spec *agentproto.Spec) {
	end := func(a answer) {
		if e.inquiries.close(q, d, in, a) && q == whichVersion {
			e.cfg.Changed()
		}
	}
	if !d.turn.Acquire(e.life) {
		return
	}
	defer d.turn.Release()
	if !e.inquiries.slots.Acquire(e.life) {
		return
	}
	defer e.inquiries.slots.Release()
	mark, limit := e.host.Mark(spec), min(procspec.OpTimeout(spec), e.cfg.Timing.Inquiry)
	output := e.host.Outputs.Path(mark)
	defer e.host.Outputs.Discard(output)
	exec, err := e.host.Runner.Start(e.life, proc.Command{
		Shell: proc.Shell(spec.Shell), Line: in.line, Dir: spec.SetupPath, Account: procspec.Account(spec), Env: spec.Env,
		LoginProfile: !spec.NoProfile, OutputPath: output, Key: mark, Op: "inquiry", Timeout: limit, Contained: true,
	})
	if err != nil {
		end(answer{text: oneLine("not run: " + err.Error())})
		return
	}
	e.host.Groups.Add(exec.Identity().PID)
	defer e.host.Groups.Remove(exec.Identity().PID)
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-exec.Done():
		end(answerOf(exec.Result()))
		return
	case <-timeout.C: // which ends the command as well
		end(answer{text: inTheDark, ran: true})
	case <-e.life.Done():
	}
	e.seeOff(exec, spec, in.line)
}

// seeOff waits until a command that was asked to go has gone. The end of the
// engine asks it, too: nobody would end it later.
func (e *Engine) seeOff(exec *proc.Execution, spec *agentproto.Spec, line string) {
	hanging := time.NewTimer(proc.KillGrace + e.cfg.Timing.KillWait)
	defer hanging.Stop()
	for {
		select {
		case <-exec.Done():
			return
		case <-hanging.C:
			e.cfg.Tell(agentproto.Event{
				Kind: agentproto.EventCommandHanging, Key: spec.Key, Namespace: spec.Namespace, Name: spec.Name, ProcName: spec.ProcName,
				PID:     exec.Identity().PID,
				Message: fmt.Sprintf("command %s, pid %d, does not end by SIGKILL; the process is not asked anything until it does", procop.Clip(line, maxAnswer), exec.Identity().PID),
			})
		case <-e.life.Done():
			_ = proc.KillGroup(context.Background(), exec.Identity(), 0)
			return
		}
	}
}

// answerOf is what a command that ended has said.
func answerOf(r proc.Result) answer {
	said := oneLine(r.Output)
	switch {
	case r.TimedOut:
		return answer{text: inTheDark, ran: true}
	case !r.OK():
		return answer{text: oneLine(procop.Join("failed: "+r.String(), said)), ran: true}
	case said == "":
		said = "ok"
	}
	return answer{text: said, ran: true, ok: true}
}

// oneLine is the first line of a text that says anything.
func oneLine(text string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			return procop.Clip(line, maxAnswer)
		}
	}
	return ""
}

// inquire adds what the spec's commands report of the process that was found. While
// something else is done with the process, the last known answers are shown.
func (e *Engine) inquire(ctx context.Context, spec *agentproto.Spec, main proc.Identity, f *facts) {
	if !f.running || main.IsZero() || e.snapshotOf(spec.Key).busy != "" {
		return
	}
	for q, shown := range [questions]*string{whichVersion: &f.version, howHealthy: &f.health} {
		if question(q).line(spec) != "" {
			*shown = e.ask(ctx, question(q), main, spec, e.cfg.Timing.AnswerAge).text
		}
	}
}
