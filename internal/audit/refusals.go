package audit

import (
	"sync"
	"time"
)

const (
	// window is for how long refusals of one sort are counted together,
	// after the first of them, inFull, had records of their own.
	window = time.Minute
	inFull = 5
	// sorts is how many sorts are told apart in a window; all others of one
	// reason are one sort.
	sorts = 64
)

// sort is what refusals have in common that are counted together.
type sort struct{ reason, call, application, address string }

// refusals bounds what refused calls cost, whoever makes how many: in a minute
// a few records for each of some sorts, and how many more there were.
type refusals struct {
	mu   sync.Mutex
	seen map[sort]*repeated
}

// repeated is a sort of refusals: the latest that had a record, how many had
// one, and how many came since.
type repeated struct {
	record Record
	told   int
	more   int
	last   time.Time
}

// Refused keeps the record of a refused call, or counts it with others like
// it. Those of strangers, who did not prove to be an application, do not keep
// others' from being told.
func (l *Log) Refused(r Record, stranger bool) {
	if l == nil {
		return
	}
	from := &l.callers
	if stranger {
		from = &l.strangers
	}
	if from.tells(&r) {
		l.Note(r)
	}
}

// tells counts a refusal and reports whether it has a record of its own.
func (rs *refusals) tells(r *Record) bool {
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
	if s.told == inFull {
		s.more++
		s.last = r.At
		return false
	}
	s.told++
	s.record = *r
	if key == (sort{reason: r.Reason}) { // those that follow are from anybody
		s.record.Call, s.record.Application, s.record.Claimed, s.record.User, s.record.Address = "", "", "", "", ""
	}
	return true
}

// sumUp returns a record for each sort of which there were more, and begins
// anew.
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

// tellRepeats tells every window what was counted in it.
func (l *Log) tellRepeats() {
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
