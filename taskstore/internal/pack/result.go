package pack

import (
	"encoding/binary"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/packing"
)

// Result packs a result. Apply [Bound] first.
func Result(r *procfleet.Result) []byte {
	f := packing.Writing(256 + len(r.Message))
	resultFields(f, r)
	return f.Out
}

// ReadResult parses the output of [Result]. The texts of the result share the memory of
// data.
func ReadResult(data string) (procfleet.Result, error) {
	var r procfleet.Result
	f, err := packing.Reading(data)
	if err != nil {
		return r, err
	}
	resultFields(f, &r)
	return r, f.Err
}

func resultFields(f *packing.Fields, r *procfleet.Result) {
	packing.Num(f, &r.Item)
	packing.Num(f, &r.Code)
	packing.Text(f, &r.Reason)
	packing.Num(f, &r.Rank)
	f.Bool(&r.Late)
	packing.Text(f, &r.Message)
	f.Texts(&r.Warnings)
	f.Time(&r.AcceptedAt)
	f.Time(&r.StartedAt)
	f.Time(&r.FinishedAt)
	seen := r.Status != nil
	f.Bool(&seen)
	if !seen {
		return
	}
	if f.Reading {
		r.Status = new(procfleet.ProcessStatus)
	}
	f.Part(func(f *packing.Fields) { statusFields(f, r.Status) })
}

func statusFields(f *packing.Fields, s *procfleet.ProcessStatus) {
	f.Time(&s.At)
	packing.Num(f, &s.UTCOffset)
	f.Bool(&s.Running)
	f.Bool(&s.Supervised)
	packing.Text(f, &s.Phase)
	packing.Text(f, &s.AgentID)
	packing.Num(f, &s.PID)
	packing.Text(f, &s.Command)
	packing.Text(f, &s.Stat)
	packing.Num(f, &s.Threads)
	f.Time(&s.StartedAt)
	packing.Num(f, &s.ElapsedMS)
	packing.Num(f, &s.UserMS)
	packing.Num(f, &s.SystemMS)
	f.Float(&s.CPU)
	f.Float(&s.CPUAverage)
	packing.Num(f, &s.MemoryBytes)
	f.Float(&s.MemoryPercent)
	packing.Num(f, &s.HostFreeKB)
	packing.Text(f, &s.Version)
	packing.Text(f, &s.Health)
	f.Time(&s.RegisteredAt)
	f.Time(&s.LastStartedAt)
	packing.Num(f, &s.Failures)
	f.Time(&s.NextRetryAt)
	packing.Text(f, &s.Evidence)
	packing.Nums(f, &s.PIDs)
	packing.Num(f, &s.Instances)
	f.Float(&s.TreeCPU)
	packing.Num(f, &s.TreeMemoryBytes)
	f.Time(&s.NextRunAt)
	f.Time(&s.FrozenUntil)
	packing.Num(f, &s.Restarts)
	if packing.HasLastExit(f, &s.LastExit) {
		f.Time(&s.LastExit.At)
		packing.LastExit(f, s.LastExit)
	}
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

// Cancellation returns the result of an item that had not begun when its task was canceled.
// It is computed from the task; nothing is stored per item.
func Cancellation(t *procfleet.Task, item int) procfleet.Result {
	message := "canceled before it was sent to the agent"
	if t.Cancel.Reason != "" {
		message += ": " + t.Cancel.Reason
	}
	return procfleet.Result{
		Item: item, Code: procfleet.CodeFailed, Reason: procfleet.ReasonCancelled, Rank: procfleet.RankServer,
		Message: message, FinishedAt: t.Cancel.Since,
	}
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
