package dialect

import (
	"testing"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// answer decodes a query, reads the fixture's file with the results, and encodes the response. A
// query that is rejected needs no file.
func answer[Q, A any](
	t *testing.T, f *fixture, r *Request,
	decode func(*Request) (Q, error), encode func(*Q, A, string) Reply, read func(*testing.T, *fixture, *Q) A,
) (decoded any, reply Reply, err error) {
	t.Helper()
	q, err := decode(r)
	if err != nil {
		return nil, Reply{}, err
	}
	return q, encode(&q, read(t, f, &q), testRequestID), nil
}

// orFailure is like answer, for responses that may be errors.
func orFailure[Q, A any](
	t *testing.T, f *fixture, r *Request,
	decode func(*Request) (Q, error), encode func(*Q, A, string) (Reply, error), read func(*testing.T, *fixture, *Q) A,
) (decoded any, reply Reply, err error) {
	t.Helper()
	q, err := decode(r)
	if err != nil {
		return nil, Reply{}, err
	}
	reply, err = encode(&q, read(t, f, &q), testRequestID)
	return q, reply, err
}

// templatePage is the content of templates.json.
type templatePage struct {
	Templates []catalog.Template `json:"templates"`
	Total     int                `json:"total"`
}

// file returns a function that reads a result from the named file.
func file[Q, A any](name string) func(*testing.T, *fixture, *Q) A {
	return func(t *testing.T, f *fixture, _ *Q) (found A) {
		t.Helper()
		f.Unmarshal(t, name, &found)
		return found
	}
}

func outcomesFile[Q any](asked func(*Q) []procfleet.Target) func(*testing.T, *fixture, *Q) []TargetOutcome {
	return func(t *testing.T, f *fixture, q *Q) []TargetOutcome {
		t.Helper()
		var found []TargetOutcome
		f.Unmarshal(t, "outcomes.json", &found)
		beside(t, asked(q), found, func(o *TargetOutcome) *procfleet.Target { return &o.Target })
		return found
	}
}

func groupsFile(t *testing.T, f *fixture, q *GroupQuery) []TargetGroups {
	t.Helper()
	var found []TargetGroups
	f.Unmarshal(t, "groups.json", &found)
	beside(t, q.Targets, found, func(g *TargetGroups) *procfleet.Target { return &g.Target })
	return found
}

func entriesFile(t *testing.T, f *fixture, q *ProcessQuery) []ProcessEntry {
	t.Helper()
	var found ProcessEntries
	f.Unmarshal(t, "entries.json", &found)
	beside(t, q.Targets, found.Entries, func(e *ProcessEntry) *procfleet.Target { return &e.Target })
	for i := range found.Entries {
		found.Entries[i].Namespace, found.Entries[i].Name = q.Namespace, q.Name
		complete(&found.Entries[i])
	}
	return found.Entries
}

func entryPageFile(t *testing.T, f *fixture, q *ProcessPage) ProcessEntries {
	t.Helper()
	var found ProcessEntries
	f.Unmarshal(t, "entries.json", &found)
	for i := range found.Entries {
		found.Entries[i].Namespace = q.Namespace
		complete(&found.Entries[i])
	}
	return found
}

// complete sets the process of an entry in all its members.
func complete(e *ProcessEntry) {
	e.Host = e.Target.Host
	if e.Registration != nil {
		e.Registration.Process = e.Process
	}
	if e.Reported != nil {
		e.Reported.Namespace, e.Reported.Name = e.Namespace, e.Name
	}
}

func agentsFile(t *testing.T, f *fixture, q *AgentQuery) []TargetAgent {
	t.Helper()
	var agents []*v1.Agent
	f.Unmarshal(t, "agents.json", &agents)
	found := make([]TargetAgent, len(agents))
	for i, agent := range agents {
		found[i].Agent = agent
		if agent != nil && i < len(q.Targets) {
			found[i].Target = q.Targets[i]
			found[i].Target.Host = agent.Host
		}
	}
	beside(t, q.Targets, found, func(a *TargetAgent) *procfleet.Target { return &a.Target })
	return found
}

func boundFile(t *testing.T, f *fixture, q *AgentBinding) []bool {
	t.Helper()
	var bound []bool
	f.Unmarshal(t, "bound.json", &bound)
	if len(bound) != len(q.Targets) {
		t.Fatalf("%d targets are asked for, and %d answered", len(q.Targets), len(bound))
	}
	return bound
}

func frozenFile(t *testing.T, f *fixture, q *Freezing) Frozen {
	t.Helper()
	var done Frozen
	f.Unmarshal(t, "frozen.json", &done)
	if len(done.Outcomes) != len(q.Targets) {
		t.Fatalf("%d targets are asked for, and %d answered", len(q.Targets), len(done.Outcomes))
	}
	return done
}

// beside sets the target of every result without a target to the target of the query at the same
// position.
func beside[A any](t *testing.T, asked []procfleet.Target, found []A, target func(*A) *procfleet.Target) {
	t.Helper()
	if len(found) != len(asked) {
		t.Fatalf("%d targets are asked for, and %d answered", len(asked), len(found))
	}
	for i := range found {
		if at := target(&found[i]); *at == (procfleet.Target{}) {
			*at = asked[i]
		}
	}
}
