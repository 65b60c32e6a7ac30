package operate

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/procfleet/procfleet/agentproto"
)

// eventLog records the events of an engine.
type eventLog struct {
	mu     sync.Mutex
	events []agentproto.Event
}

func (l *eventLog) add(e agentproto.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// of returns the events of one kind.
func (l *eventLog) of(kind string) []agentproto.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []agentproto.Event
	for _, e := range l.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// write writes a file in the setup path.
func (g *rig) write(name, text string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) remove(name string) {
	g.t.Helper()
	if err := os.Remove(filepath.Join(g.dir, name)); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) exists(name string) bool {
	_, err := os.Stat(filepath.Join(g.dir, name))
	return err == nil
}

// lines returns the number of lines of a file in the setup path.
func (g *rig) lines(name string) int {
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "\n")
}
