package web

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/client"
)

// survey counts the hosts and the processes that a viewer may read.
type survey struct {
	Areas      []areaCount
	Namespaces []namespaceCount
	Total      areaCount
	GaveUp     int
	Drifted    int
	Freezes    int
	Oldest     time.Time // of the last reports of hosts; zero without a report
	At         time.Time // begin of the reading
	Took       time.Duration
}

// areaCount counts the hosts of a cloud area, and their processes.
type areaCount struct {
	Area                      procfleet.CloudArea
	Agents, Up, Down, Claimed int // Claimed hosts are claimed by two agents
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

// readSurvey counts all hosts and processes that the viewer may read.
func readSurvey(ctx context.Context, v *visit) (*survey, error) {
	s := &survey{At: time.Now()}
	of := client.HostQuery{Query: client.Query{Business: v.business()}}
	areas := make(map[procfleet.CloudArea]*areaCount)
	for host, err := range v.api.Hosts(ctx, of) {
		if err != nil {
			return nil, err
		}
		s.addHost(&host, entry(areas, host.Host.Cloud))
	}
	namespaces := make(map[string]*namespaceCount)
	for p, err := range v.api.Fleet(ctx, client.FleetQuery{HostQuery: of, Drift: true}) {
		if err != nil {
			return nil, err
		}
		s.addProcess(&p, entry(areas, p.Host.Cloud), entry(namespaces, p.Namespace))
	}
	for _, n := range namespaces {
		n.Restarts = make([]int, restartPeriods)
	}
	if err := countRestarts(ctx, v.api, namespaces); err != nil {
		return nil, err
	}
	for _, err := range v.api.Freezes(ctx, client.Query{}) {
		if signedOut(err) {
			return nil, err
		}
		if err != nil { // the viewer may not list freezes
			break
		}
		s.Freezes++
	}
	s.sort(areas, namespaces)
	s.Took = time.Since(s.At)
	return s, nil
}

// entry returns the entry of a map, which it creates if it is missing.
func entry[K comparable, V any](in map[K]*V, key K) *V {
	v := in[key]
	if v == nil {
		v = new(V)
		in[key] = v
	}
	return v
}

func (s *survey) addHost(host *client.Agent, area *areaCount) {
	if host.Missing {
		return
	}
	for _, a := range []*areaCount{area, &s.Total} {
		a.Agents++
		if host.Conflict {
			a.Claimed++
		}
	}
}

func (s *survey) addProcess(p *client.FleetProcess, area *areaCount, n *namespaceCount) {
	if s.Oldest.IsZero() || p.ReportedAt.Before(s.Oldest) {
		s.Oldest = p.ReportedAt
	}
	if p.Status.Running {
		s.Total.Up, area.Up, n.Up = s.Total.Up+1, area.Up+1, n.Up+1
	} else {
		s.Total.Down, area.Down, n.Down = s.Total.Down+1, area.Down+1, n.Down+1
	}
	if p.Status.Phase == gaveUpPhase {
		s.GaveUp, n.GaveUp = s.GaveUp+1, n.GaveUp+1
	}
	if len(p.Drift) > 0 && p.Drift[0] != v1.DriftUnregistered {
		s.Drifted, n.Drifted = s.Drifted+1, n.Drifted+1
	}
}

// sort adds the counts in the order of areas and of namespaces.
func (s *survey) sort(areas map[procfleet.CloudArea]*areaCount, namespaces map[string]*namespaceCount) {
	for _, area := range slices.Sorted(maps.Keys(areas)) {
		areas[area].Area = area
		s.Areas = append(s.Areas, *areas[area])
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		namespaces[name].Namespace = name
		s.Namespaces = append(s.Namespaces, *namespaces[name])
	}
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
