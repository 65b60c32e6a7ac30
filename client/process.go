package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// Register stores the spec of a process on hosts, replaces earlier registrations
// there, and returns one outcome for each of the hosts, then for each of the agent
// ids. process must have a namespace and a name. Register starts and supervises
// nothing.
//
// Register and the calls below are idempotent: the client retries them.
func (c *Client) Register(ctx context.Context, process procfleet.ProcessSpec, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPut, "/v1/registrations", on, v1.RegisterRequest{Process: process, Targets: on})
}

// RegisterNew is [Client.Register] without replacement: an existing registration is
// unchanged and reported with [procfleet.CodeRegistered]. If a response was lost,
// the retry reports the registrations of the earlier attempt with this code, too.
func (c *Client) RegisterNew(ctx context.Context, process procfleet.ProcessSpec, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPost, "/v1/registrations", on, v1.RegisterRequest{Process: process, Targets: on})
}

// Unregister removes registrations and ends supervision; the process itself keeps
// running. The code is [procfleet.CodeNotRunning] where nothing was registered,
// also if an earlier attempt removed the registration and its response was lost.
func (c *Client) Unregister(ctx context.Context, namespace, name string, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPost, "/v1/registrations/remove", on, v1.ProcessRequest{Process: v1.Identity{Namespace: namespace, Name: name}, Targets: on})
}

// Processes yields the registered or reported processes of a namespace, by name
// and then by host. It ends after the first error.
func (c *Client) Processes(ctx context.Context, namespace string, q Query) iter.Seq2[Process, error] {
	return all(q, func(q Query) (Page[Process], error) { return c.ProcessPage(ctx, namespace, q) })
}

// ProcessPage returns one page of [Client.Processes].
func (c *Client) ProcessPage(ctx context.Context, namespace string, q Query) (Page[Process], error) {
	var answer v1.ProcessPage
	path := q.path("/v1/processes", "start", map[string]string{"namespace": namespace, "business": q.Business})
	err := c.do(ctx, get(path), &answer)
	return Page[Process]{answer.Processes, answer.Next}, err
}

// ProcessesOn returns one process for each of the hosts, then for each agent id.
func (c *Client) ProcessesOn(ctx context.Context, namespace, name string, on Targets) ([]Process, error) {
	return inParts(on, func(on Targets) ([]Process, error) {
		var answer v1.ProcessList
		body := v1.ProcessRequest{Process: v1.Identity{Namespace: namespace, Name: name}, Targets: on}
		err := c.sendFor(ctx, on.Count(), http.MethodPost, "/v1/processes/query", body, &answer, func() int { return len(answer.Processes) })
		return answer.Processes, err
	})
}

// SetGroups replaces the groups of a namespace on hosts; an empty list removes all
// groups.
func (c *Client) SetGroups(ctx context.Context, g Grouping, on Targets) ([]Outcome, error) {
	if g.Groups == nil {
		g.Groups = []Group{} // the server rejects null
	}
	return c.change(ctx, http.MethodPut, "/v1/groups", on, v1.GroupsRequest{Grouping: g, Targets: on})
}

// LabelHosts removes labels of hosts by their keys, then sets labels. The server adds them to
// the labels that agents announce.
func (c *Client) LabelHosts(ctx context.Context, set map[string]string, remove []string, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPut, "/v1/labels", on, v1.LabelsRequest{Set: set, Remove: remove, Targets: on})
}

// GroupsOn returns the groups of a namespace for each of the hosts, then for each
// agent id.
func (c *Client) GroupsOn(ctx context.Context, namespace string, on Targets) ([]HostGroups, error) {
	return inParts(on, func(on Targets) ([]HostGroups, error) {
		var answer v1.HostGroupsList
		body := v1.GroupsQuery{Namespace: namespace, Targets: on}
		err := c.sendFor(ctx, on.Count(), http.MethodPost, "/v1/groups/query", body, &answer, func() int { return len(answer.Hosts) })
		return answer.Hosts, err
	})
}

// AgentsOn returns the live agent of each of the hosts, then of each agent id.
func (c *Client) AgentsOn(ctx context.Context, on Targets) ([]HostAgent, error) {
	return inParts(on, func(on Targets) ([]HostAgent, error) {
		var answer v1.AgentList
		err := c.sendFor(ctx, on.Count(), http.MethodPost, "/v1/agents/query", on, &answer, func() int { return len(answer.Agents) })
		return answer.Agents, err
	})
}

// BindAgents assigns agent ids to hosts and returns the bindings with their
// outcomes; Bound is ignored in the argument. business is as in [Targets].
func (c *Client) BindAgents(ctx context.Context, bindings []Binding, business string) ([]Binding, error) {
	body := v1.BindRequest{Bindings: make([]v1.AgentName, len(bindings)), Business: business}
	for i, b := range bindings {
		body.Bindings[i] = v1.AgentName{Host: b.Host, AgentID: b.AgentID}
	}
	var answer v1.BindingList
	err := c.sendFor(ctx, len(bindings), http.MethodPost, "/v1/agents/bindings", body, &answer, func() int { return len(answer.Results) })
	return answer.Results, err
}

// change sends a request whose response has one outcome for each target.
func (c *Client) change(ctx context.Context, method, path string, on Targets, body any) ([]Outcome, error) {
	var answer v1.Outcomes
	err := c.sendFor(ctx, on.Count(), method, path, body, &answer, func() int { return len(answer.Results) })
	return answer.Results, err
}

// sendFor is [Client.send] for a request about a number of targets. It returns an error
// unless the response has as many entries.
func (c *Client) sendFor(ctx context.Context, targets int, method, path string, body, into any, entries func() int) error {
	err := c.send(ctx, method, path, body, into)
	if n := entries(); err == nil && n != targets {
		err = fmt.Errorf("%s: %w: it has %d entries for %d targets", path, ErrBadResponse, n, targets)
	}
	return err
}

// inParts splits the targets on into lists of up to [LargestPage], calls query with each
// list, at least once, and concatenates the results.
func inParts[T any](on Targets, query func(Targets) ([]T, error)) ([]T, error) {
	var found []T
	for {
		part := on
		part.Hosts = on.Hosts[:min(len(on.Hosts), LargestPage)]
		part.Agents = on.Agents[:min(len(on.Agents), LargestPage-len(part.Hosts))]
		answers, err := query(part)
		if err != nil {
			return nil, err
		}
		found = append(found, answers...)
		on.Hosts, on.Agents = on.Hosts[len(part.Hosts):], on.Agents[len(part.Agents):]
		if on.Count() == 0 {
			return found, nil
		}
	}
}
