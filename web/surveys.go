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
// viewer has the first page open. One is read at a time, and apart from the first ones of viewers for at
// most a tenth of the time.
type surveys struct {
	console *Console
	mu      sync.Mutex
	cached  map[viewer]*cachedSurvey
	reading bool
	ended   time.Time     // of the last reading
	took    time.Duration // the last reading
}

// viewer identifies who has a survey, by a digest of the credentials.
type viewer [sha256.Size]byte

// cachedSurvey is the last survey of a viewer.
type cachedSurvey struct {
	last      *survey
	err       error         // of the last reading
	ready     chan struct{} // closed after the first reading
	ended     time.Time     // of the last reading
	requested time.Time     // last time
}

const (
	surveyTimeout = 2 * time.Minute
	surveyRest    = 2 * time.Second // minimum time between surveys
	surveyFirst   = time.Second     // how long a page waits for the first survey
	viewerGone    = 5 * time.Second // time without a request after which a viewer has left the page
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
	c.requested = time.Now()
	if s.due(c) && s.console.life.Err() == nil {
		s.reading = true
		s.console.open.Go(func() { s.read(ctx, v, c) })
	}
	return c
}

// due reports whether the survey of a viewer may begin now: the first one of a viewer when no other is
// read, later ones after a rest, that of the viewer who has waited longest.
func (s *surveys) due(c *cachedSurvey) bool {
	if s.reading || c.ended.IsZero() {
		return !s.reading
	}
	for _, other := range s.cached {
		if other.ended.Before(c.ended) && c.requested.Sub(other.requested) < viewerGone {
			return false
		}
	}
	return c.requested.Sub(s.ended) >= max(surveyRest, 9*s.took)
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
	begin := time.Now()
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
	c.ended = time.Now()
	s.reading, s.ended, s.took = false, c.ended, c.ended.Sub(begin)
	if first {
		close(c.ready)
	}
}
