package web

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"
)

// surveys has the last survey of each viewer. A survey reads all hosts, so it is read only while a
// viewer has the first page open, and for at most a tenth of the time.
type surveys struct {
	console *Console
	mu      sync.Mutex
	cached  map[viewer]*cachedSurvey
}

// viewer identifies who has a survey, by a digest of the credentials.
type viewer [sha256.Size]byte

// cachedSurvey is the last survey of a viewer.
type cachedSurvey struct {
	last      *survey
	err       error         // of the last reading
	ready     chan struct{} // closed after the first reading
	reading   bool
	ended     time.Time // of the last reading
	requested time.Time // last time
}

const (
	surveyTimeout = 2 * time.Minute
	surveyRest    = 2 * time.Second // minimum time between surveys
	surveyFirst   = time.Second     // how long a page waits for the first survey
	maxSurveys    = 32
)

// of returns the last survey of a viewer; nil if the first one is not ready yet. It begins a
// new one if the last is old.
func (s *surveys) of(ctx context.Context, v *visit) (*survey, error) {
	c := s.begin(ctx, v)
	wait, cancel := context.WithTimeout(ctx, surveyFirst)
	defer cancel()
	select {
	case <-c.ready:
	case <-wait.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.last != nil {
		return c.last, nil // the page shows its time
	}
	return nil, c.err
}

func (s *surveys) begin(ctx context.Context, v *visit) *cachedSurvey {
	var of viewer
	if v.session != nil {
		of = sha256.Sum256([]byte(v.session.Token + "\x00" + v.business()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cached[of]
	if c == nil {
		s.evict()
		c = &cachedSurvey{ready: make(chan struct{})}
		s.cached[of] = c
	}
	now := time.Now()
	c.requested = now
	rest := surveyRest
	if c.last != nil {
		rest = max(rest, 9*c.last.Took)
	}
	if !c.reading && now.Sub(c.ended) >= rest && s.console.life.Err() == nil {
		c.reading = true
		s.console.open.Go(func() { s.read(ctx, v, c) })
	}
	return c
}

// evict removes the survey that was requested least recently, if there are too many.
func (s *surveys) evict() {
	if s.cached == nil {
		s.cached = make(map[viewer]*cachedSurvey)
	}
	if len(s.cached) < maxSurveys {
		return
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(s.cached)), func(a, b viewer) int {
		return s.cached[a].requested.Compare(s.cached[b].requested)
	})
	delete(s.cached, oldest)
}

// read reads a survey. It goes on if the viewer leaves the page, and ends with the console.
func (s *surveys) read(ctx context.Context, v *visit, c *cachedSurvey) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), surveyTimeout)
	defer cancel()
	defer context.AfterFunc(s.console.life, cancel)()
	read, err := readSurvey(ctx, v)
	s.mu.Lock()
	defer s.mu.Unlock()
	first := c.last == nil && c.err == nil
	if c.err = err; err == nil {
		c.last = read
	}
	c.reading, c.ended = false, time.Now()
	if first {
		close(c.ready)
	}
}
