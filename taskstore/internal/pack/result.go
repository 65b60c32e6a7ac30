package pack

import (
	"encoding/binary"
	"strings"

	"github.com/procfleet/procfleet"
)

const resultVersion = 1

// Result packs a result. Apply [Bound] first.
func Result(r *procfleet.Result) []byte {
	f := fields{out: make([]byte, 0, 256+len(r.Message))}
	f.out = append(f.out, resultVersion)
	f.result(r)
	return f.out
}

// ReadResult parses the output of [Result]. The texts of the result share the memory of
// data.
func ReadResult(data string) (procfleet.Result, error) {
	var r procfleet.Result
	if data == "" || data[0] != resultVersion {
		return r, errDamaged
	}
	f := fields{reading: true, in: data[1:]}
	f.result(&r)
	return r, f.err
}

func (f *fields) result(r *procfleet.Result) {
	num(f, &r.Item)
	num(f, &r.Code)
	text(f, &r.Reason)
	num(f, &r.Rank)
	f.bool(&r.Late)
	text(f, &r.Message)
	f.texts(&r.Warnings)
	f.time(&r.AcceptedAt)
	f.time(&r.StartedAt)
	f.time(&r.FinishedAt)
	seen := r.Status != nil
	f.bool(&seen)
	if !seen {
		return
	}
	if f.reading {
		r.Status = new(procfleet.ProcessStatus)
	}
	f.part(func(f *fields) { f.status(r.Status) })
}

func (f *fields) status(s *procfleet.ProcessStatus) {
	f.time(&s.At)
	num(f, &s.UTCOffset)
	f.bool(&s.Running)
	f.bool(&s.Supervised)
	text(f, &s.Phase)
	text(f, &s.AgentID)
	num(f, &s.PID)
	text(f, &s.Command)
	text(f, &s.Stat)
	num(f, &s.Threads)
	f.time(&s.StartedAt)
	num(f, &s.ElapsedMS)
	num(f, &s.UserMS)
	num(f, &s.SystemMS)
	f.float(&s.CPU)
	f.float(&s.CPUAverage)
	num(f, &s.MemoryBytes)
	f.float(&s.MemoryPercent)
	num(f, &s.HostFreeKB)
	text(f, &s.Version)
	text(f, &s.Health)
	f.time(&s.RegisteredAt)
	f.time(&s.LastStartedAt)
	num(f, &s.Failures)
	f.time(&s.NextRetryAt)
	text(f, &s.Evidence)
	nums(f, &s.PIDs)
	num(f, &s.Instances)
	f.float(&s.TreeCPU)
	num(f, &s.TreeMemoryBytes)
	f.time(&s.NextRunAt)
	f.time(&s.FrozenUntil)
	num(f, &s.Restarts)
	if lastExit(f, &s.LastExit) {
		f.time(&s.LastExit.At)
		f.lastExit(s.LastExit)
	}
}

// lastExit writes or reads whether a value has a LastExit. When it reads one, it
// allocates it.
func lastExit(f *fields, v **procfleet.LastExit) bool {
	there := *v != nil
	f.bool(&there)
	if there && f.reading {
		*v = new(procfleet.LastExit)
	}
	return there
}

// lastExit writes or reads all fields except the time.
func (f *fields) lastExit(e *procfleet.LastExit) {
	f.bool(&e.Known)
	num(f, &e.Code)
	text(f, &e.Signal)
	text(f, &e.Why)
}

// Bound returns r with valid UTF-8 texts, the message truncated to
// [procfleet.MaxMessage] bytes, and everything else truncated so that the packed result
// has at most [procfleet.MaxResult] bytes. It copies the values that it changes; r's
// remain unchanged.
func Bound(r procfleet.Result) procfleet.Result {
	r.Message = cut(r.Message, procfleet.MaxMessage)
	r = limit(r, procfleet.MaxResult)
	if mayExceed(&r, procfleet.MaxResult) && len(Result(&r)) > procfleet.MaxResult {
		// Divide the space besides the message and the numbers among thirteen texts and
		// the pids.
		r = limit(r, (procfleet.MaxResult-procfleet.MaxMessage-1<<10)/14)
	}
	return r
}

// mayExceed reports whether the packed result may have more than n bytes. It only adds
// up the lengths of texts, so that an ordinary result need not be packed to be
// measured.
func mayExceed(r *procfleet.Result, n int) bool {
	const numbers, length = 1 << 10, 4 // upper bounds of the bytes for all numbers, and for the length of one text
	size := numbers + len(r.Reason) + len(r.Message)
	for _, w := range r.Warnings {
		size += length + len(w)
	}
	if s := r.Status; s != nil {
		for _, t := range statusTexts(s) {
			size += len(*t)
		}
		size += length + binary.MaxVarintLen64*len(s.PIDs)
	}
	return size > n
}

// statusTexts returns pointers to all texts of s.
func statusTexts(s *procfleet.ProcessStatus) []*string {
	texts := []*string{&s.Phase, &s.AgentID, &s.Command, &s.Stat, &s.Version, &s.Health, &s.Evidence}
	if e := s.LastExit; e != nil {
		texts = append(texts, &e.Signal, &e.Why)
	}
	return texts
}

// limit truncates each text except the message to n bytes, the pids to a number that
// fits into n bytes, and all warnings together to 3 × n bytes.
func limit(r procfleet.Result, n int) procfleet.Result {
	r.Reason = procfleet.Reason(cut(string(r.Reason), n))
	r.Warnings = limitWarnings(r.Warnings, 3*n)
	if r.Status == nil {
		return r
	}
	s := *r.Status
	if s.LastExit != nil {
		e := *s.LastExit
		s.LastExit = &e
	}
	for _, t := range statusTexts(&s) {
		*t = cut(*t, n)
	}
	s.PIDs = s.PIDs[:min(len(s.PIDs), n/binary.MaxVarintLen64)]
	r.Status = &s
	return r
}

func limitWarnings(warnings []string, total int) []string {
	var kept []string
	for _, w := range warnings {
		const overhead = 4 // bytes for the length of a text, so that many empty warnings are truncated too
		if total <= overhead {
			break
		}
		w = cut(w, total-overhead)
		total -= len(w) + overhead
		kept = append(kept, w)
	}
	return kept
}

// cut returns s as valid UTF-8 of at most n bytes.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// Rejection returns the result of an item of a rejected task. It is computed from the
// task; nothing is stored per item.
func Rejection(t *procfleet.Task, item int) procfleet.Result {
	return procfleet.Result{
		Item:       item,
		Code:       procfleet.CodeFailed,
		Reason:     procfleet.ReasonRejected,
		Rank:       procfleet.RankServer,
		Message:    t.RejectReason,
		FinishedAt: t.FinishedAt,
	}
}
