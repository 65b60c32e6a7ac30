package audit

import (
	"sync"
	"time"
)

const (
	// window is the period in which refusals of one kind are counted together,
	// after the first inFull refusals, which have records of their own.
	window = time.Minute
	inFull = 5
	// maxKinds is the number of kinds that are counted separately per window; all
	// others with the same reason count as one kind.
	maxKinds = 64
)

// refusalKind is the key for counting refusals together.
type refusalKind struct{ reason, call, application, address string }

// refusals limits the records of refused calls: in each window it admits a few
// per kind, and counts the others.
type refusals struct {
	mu   sync.Mutex
	seen map[refusalKind]*repeated
}

// repeated is the state of one kind: the latest recorded refusal, the number of
// recorded refusals, and the number and time of the others.
type repeated struct {
	record  Record
	written int
	more    int
	last    time.Time
}

// Refused stores the record of a refused call, or counts it together with others
// of its kind. Refusals of unauthenticated callers are counted
// separately, so that they cannot suppress records of other callers.
func (l *Log) Refused(r Record, unauthenticated bool) {
	if l == nil {
		return
	}
	from := &l.callers
	if unauthenticated {
		from = &l.unauthenticated
	}
	if from.count(&r) {
		l.Note(r)
	}
}

// count counts a refusal and reports whether to store a record of it.
func (rs *refusals) count(r *Record) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	key := refusalKind{r.Reason, r.Call, r.Application + r.Claimed, r.Address}
	s := rs.seen[key]
	if s == nil && len(rs.seen) >= maxKinds {
		key = refusalKind{reason: r.Reason}
		s = rs.seen[key]
	}
	if s == nil {
		if rs.seen == nil {
			rs.seen = make(map[refusalKind]*repeated)
		}
		s = &repeated{}
		rs.seen[key] = s
	}
	if s.written == inFull {
		s.more++
		s.last = r.At
		return false
	}
	s.written++
	s.record = *r
	if key == (refusalKind{reason: r.Reason}) { // the key has no caller: later refusals may have others
		s.record.Call, s.record.Application, s.record.Claimed, s.record.User, s.record.Address = "", "", "", "", ""
	}
	return true
}

// sumUp returns a record for each kind with refusals that were only counted, and
// starts a new window.
func (rs *refusals) sumUp() []Record {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var sums []Record
	for _, s := range rs.seen {
		if s.more > 0 {
			r := s.record
			r.ID, r.At, r.Repeats = r.ID+"/repeats", s.last, s.more
			sums = append(sums, r)
		}
	}
	clear(rs.seen)
	return sums
}

// recordRepeats stores the counts of every window at its end.
func (l *Log) recordRepeats() {
	ticker := time.NewTicker(window)
	defer ticker.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-ticker.C:
			l.sumUp()
		}
	}
}

func (l *Log) sumUp() {
	for _, from := range []*refusals{&l.unauthenticated, &l.callers} {
		for _, r := range from.sumUp() {
			l.Note(r)
		}
	}
}
