package proc

import (
	"maps"
	"testing"
)

func TestParentsAreThoseThatAreOlder(t *testing.T) {
	t.Parallel()
	const agent = 100
	stats := []Stat{
		{PID: 8, Start: 1},
		{PID: agent, PPID: 8, Start: 10},
		{PID: 200, PPID: agent, Start: 20}, // a command
		{PID: 201, PPID: 200, Start: 21},
		{PID: 202, PPID: 201, Start: 22},
		{PID: 300, PPID: 999, Start: 30}, // its parent has ended
		{PID: 301, PPID: 300, Start: 31},
		{PID: 400, PPID: 202, Start: 5}, // another process has reused the pid of its parent
		{PID: 500, PPID: 501, Start: 50},
		{PID: 501, PPID: 500, Start: 50},
		{PID: 600, PPID: 600, Start: 60},
	}
	relate(stats, agent)
	parents, groups := map[int]int{}, map[int]int{}
	for _, st := range stats {
		parents[st.PID], groups[st.PID] = st.PPID, st.PGID
	}
	wantParents := map[int]int{
		8: 0, agent: 8, 200: agent, 201: 200, 202: 201, 300: 0, 301: 300, 400: 0, 500: 501, 501: 500, 600: 0,
	}
	if !maps.Equal(parents, wantParents) {
		t.Errorf("parents %v, want %v", parents, wantParents)
	}
	for pid, want := range map[int]int{8: 8, 200: 200, 201: 200, 202: 200, 300: 300, 301: 300, 400: 400} {
		if groups[pid] != want {
			t.Errorf("pid %d is in group %d, want %d", pid, groups[pid], want)
		}
	}
}
