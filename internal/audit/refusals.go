package audit

import (
	"sync"
	"time"
)

const (
	// window is for how long refusals of one sort are counted together, after
	// the first inFull of them had records of their own.
	window = time.Minute
	inFull = 5
	// sorts is how many sorts are counted separately in a window; all others of
	// one reason are one sort.
	sorts = 64
)

// sort is the key by which refusals are counted together.
type sort struct{ reason, call, application, address string }

// refusals bounds the records of refused calls: in a minute a few for each of a
// bounded number of sorts, and the count of the others.
type refusals struct {
	mu   sync.Mutex
	seen map[sort]*repeated
}

// repeated is a sort of refusals: the latest that had a record, how many had
// one, and how many followed.
type repeated struct {
	record  Record
	written int
	more    int
	last    time.Time
}

// Refused stores the record of a refused call, or counts it with others of its
// sort. Callers that are not authenticated (strangers) are counted apart, so
// that they cannot suppress the records of other callers.
func (l *Log) Refused(r Record, stranger bool) {
	if l == nil {
		return
	}
	from := &l.callers
	if stranger {
		from = &l.strangers
	}
	if from.count(&r) {
		l.Note(r)
	}
}

// count counts a refusal and reports whether it gets a record of its own.
func (rs *refusals) count(r *Record) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	key := sort{r.Reason, r.Call, r.Application + r.Claimed, r.Address}
	s := rs.seen[key]
	if s == nil && len(rs.seen) >= sorts {
		key = sort{reason: r.Reason}
		s = rs.seen[key]
	}
	if s == nil {
		if rs.seen == nil {
			rs.seen = make(map[sort]*repeated)
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
	if key == (sort{reason: r.Reason}) { // the next ones may be of any caller
		s.record.Call, s.record.Application, s.record.Claimed, s.record.User, s.record.Address = "", "", "", "", ""
	}
	return true
}

// sumUp returns a record for each sort that had more refusals than records, and
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

// recordRepeats records after every window what was counted in it.
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
	for _, from := range []*refusals{&l.strangers, &l.callers} {
		for _, r := range from.sumUp() {
			l.Note(r)
		}
	}
}
