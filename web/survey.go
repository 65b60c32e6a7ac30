package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// survey counts the hosts and the processes that a viewer may read.
type survey struct {
	Areas      []areaCount
	Namespaces []namespaceCount
	Total      areaCount
	GaveUp     int
	Drifted    int
	Oldest     time.Time // of the last reports of hosts; zero without a report
	At         time.Time // begin of the reading
	Took       time.Duration
}

// areaCount counts the hosts of a cloud area.
type areaCount struct {
	Area                      procfleet.CloudArea
	Agents, Up, Down, Claimed int // Claimed hosts are claimed by two agents
	Frozen                    int
}

// namespaceCount counts the processes of a namespace.
type namespaceCount struct {
	Namespace                 string
	Up, Down, GaveUp, Drifted int
	Restarts                  []int // automatic restarts of the last hour, by periods of restartPeriod
	Restarted                 int   // sum of Restarts
}

const (
	restartPeriod  = 5 * time.Minute
	restartPeriods = 12
	gaveUpPhase    = "fatal" // phase of a process whose automatic starts have ended
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

func readSurvey(ctx context.Context, v *visit) (*survey, error) {
	s := &survey{At: time.Now()}
	if err := s.countHosts(ctx, v); err != nil {
		return nil, err
	}
	if err := s.countProcesses(ctx, v); err != nil {
		return nil, err
	}
	s.Took = time.Since(s.At)
	return s, nil
}

func (s *survey) countHosts(ctx context.Context, v *visit) error {
	areas := make(map[procfleet.CloudArea]*areaCount)
	for host, err := range v.api.Hosts(ctx, client.HostQuery{Processes: true, Query: client.Query{Business: v.business()}}) {
		if err != nil {
			return err
		}
		area := areas[host.Host.Cloud]
		if area == nil {
			area = &areaCount{Area: host.Host.Cloud}
			areas[host.Host.Cloud] = area
		}
		area.add(&host)
		s.Total.add(&host)
	}
	for _, area := range areas {
		s.Areas = append(s.Areas, *area)
	}
	slices.SortFunc(s.Areas, func(a, b areaCount) int { return cmp.Compare(a.Area, b.Area) })
	return nil
}

func (a *areaCount) add(host *client.Agent) {
	if host.Missing {
		return
	}
	a.Agents++
	if host.Conflict {
		a.Claimed++
	}
	if host.FrozenUntil != nil {
		a.Frozen++
	}
	if host.Processes != nil {
		a.Up += host.Processes.Up
		a.Down += host.Processes.Down
	}
}

func (s *survey) countProcesses(ctx context.Context, v *visit) error {
	namespaces := make(map[string]*namespaceCount)
	for p, err := range v.api.Fleet(ctx, client.FleetQuery{Drift: true, HostQuery: client.HostQuery{Query: client.Query{Business: v.business()}}}) {
		if err != nil {
			return err
		}
		n := namespaces[p.Namespace]
		if n == nil {
			n = &namespaceCount{Namespace: p.Namespace, Restarts: make([]int, restartPeriods)}
			namespaces[p.Namespace] = n
		}
		if s.Oldest.IsZero() || p.ReportedAt.Before(s.Oldest) {
			s.Oldest = p.ReportedAt
		}
		if p.Status.Running {
			n.Up++
		} else {
			n.Down++
		}
		if p.Status.Phase == gaveUpPhase {
			n.GaveUp++
			s.GaveUp++
		}
		if len(p.Drift) > 0 && p.Drift[0] != "unregistered" {
			n.Drifted++
			s.Drifted++
		}
	}
	if err := countRestarts(ctx, v.api, namespaces); err != nil {
		return err
	}
	for _, n := range namespaces {
		s.Namespaces = append(s.Namespaces, *n)
	}
	slices.SortFunc(s.Namespaces, func(a, b namespaceCount) int { return cmp.Compare(a.Namespace, b.Namespace) })
	return nil
}

// countRestarts counts the automatic restarts of the last hour.
func countRestarts(ctx context.Context, api *client.Client, namespaces map[string]*namespaceCount) error {
	begin := time.Now().Add(-restartPeriods * restartPeriod)
	for e, err := range api.Events(ctx, client.EventQuery{Kind: "restarted", Since: begin}) {
		if signedOut(err) {
			return err
		}
		if err != nil { // without NATS, or the permission to list events: the other counts are of use
			return nil
		}
		n, period := namespaces[e.Namespace], int(e.ReceivedAt.Sub(begin)/restartPeriod)
		if n == nil || period < 0 || period >= restartPeriods {
			continue
		}
		n.Restarts[period]++
		n.Restarted++
	}
	return nil
}
