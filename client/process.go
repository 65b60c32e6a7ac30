package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/procfleet/procfleet"
)

// Process is how one process stands on one host. Its JSON is the API's.
type Process struct {
	// Host is zero if the caller named an agent that nobody had announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	// Alive is whether the host's agent was heard of lately; if not, what was
	// reported is old news.
	Alive        bool          `json:"alive"`
	Namespace    string        `json:"namespace"`
	Name         string        `json:"name"`
	Registration *Registration `json:"registration"` // nil if it is not registered
	Reported     *Reported     `json:"reported"`     // nil if no agent reported it
}

// Registration is what was registered.
type Registration struct {
	Process      procfleet.ProcessSpec `json:"process"`
	RegisteredAt time.Time             `json:"registered_at"` // for the first time
}

// Reported is what an agent last said of a process.
type Reported struct {
	ProcName string `json:"proc_name"`
	// Desired is what the agent holds the process to: "up" is supervised,
	// "down" stopped or killed on purpose, "none" left alone.
	Desired    string                  `json:"desired"`
	Status     procfleet.ProcessStatus `json:"status"`
	ReportedAt time.Time               `json:"reported_at"`
}

// Processes yields what is registered or reported in a namespace, by name and
// then by host. It ends after the first error.
func (c *Client) Processes(ctx context.Context, namespace string, q Query) iter.Seq2[Process, error] {
	return all(q, func(q Query) (Page[Process], error) { return c.ProcessPage(ctx, namespace, q) })
}

// ProcessPage returns one page of [Client.Processes].
func (c *Client) ProcessPage(ctx context.Context, namespace string, q Query) (Page[Process], error) {
	var answer struct {
		Processes []Process `json:"processes"`
		Next      string    `json:"next"`
	}
	q.State = ""
	path := "/v1/processes" + q.of("start") + "&namespace=" + url.QueryEscape(namespace)
	if q.Business != "" {
		path += "&business=" + url.QueryEscape(q.Business)
	}
	err := c.do(ctx, get(path), &answer)
	return Page[Process]{answer.Processes, answer.Next}, err
}

// ProcessesOn returns how one process stands on each of the hosts, then of the
// agents.
func (c *Client) ProcessesOn(ctx context.Context, namespace, name string, on Targets) ([]Process, error) {
	return ask(on, func(on Targets) ([]Process, error) {
		var answer struct {
			Processes []Process `json:"processes"`
		}
		const path = "/v1/processes/query"
		if err := c.send(ctx, http.MethodPost, path, identified{identity{namespace, name}, on}, &answer); err != nil {
			return nil, err
		}
		return answer.Processes, complete(path, len(answer.Processes), on.count())
	})
}

// ask asks about as many targets at a time as a server answers for, at least
// once, and returns the answers in one list.
func ask[T any](on Targets, some func(Targets) ([]T, error)) ([]T, error) {
	var found []T
	for {
		part := on
		part.Hosts = on.Hosts[:min(len(on.Hosts), LargestPage)]
		part.Agents = on.Agents[:min(len(on.Agents), LargestPage-len(part.Hosts))]
		answers, err := some(part)
		if err != nil {
			return nil, err
		}
		found = append(found, answers...)
		on.Hosts, on.Agents = on.Hosts[len(part.Hosts):], on.Agents[len(part.Agents):]
		if on.count() == 0 {
			return found, nil
		}
	}
}
