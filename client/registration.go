package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/procfleet/procfleet"
)

// Targets name hosts, by address or by the id of their agent; at least one.
type Targets struct {
	Hosts  []procfleet.Host `json:"hosts,omitempty"`
	Agents []string         `json:"agents,omitempty"`
	// Business is for whom. Applications that may act for some businesses only
	// must name one.
	Business string `json:"business,omitempty"`
}

func (t *Targets) count() int { return len(t.Hosts) + len(t.Agents) }

// Outcome is what came of one host of a call that makes no task. Its JSON is
// the API's.
type Outcome struct {
	// Host is zero if the caller named an agent that nobody had announced.
	Host    procfleet.Host `json:"host"`
	AgentID string         `json:"agent_id,omitempty"`
	Code    procfleet.Code `json:"code"`
	Message string         `json:"message"` // "success" for code 0
}

// Register keeps what a process is on hosts, in the place of what was
// registered there before, and returns one outcome for each of the hosts, then
// for each of the agents. The process has a namespace and a name. Registering
// starts nothing and keeps nothing alive.
//
// Like every call below it may be repeated: the client does so by itself while
// no server answers.
func (c *Client) Register(ctx context.Context, process procfleet.ProcessSpec, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPut, "/v1/registrations", on, registering{process, on})
}

// RegisterNew is Register without replacing anything: what is registered stays
// as it is, with [procfleet.CodeRegistered]. After an answer that was lost on
// its way, what the attempt before has registered counts as that too.
func (c *Client) RegisterNew(ctx context.Context, process procfleet.ProcessSpec, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPost, "/v1/registrations", on, registering{process, on})
}

// Unregister takes registrations away and ends supervision; the process itself
// is left alone. Where there was none the code is [procfleet.CodeNotRunning],
// also if an attempt before has taken it away and its answer was lost.
func (c *Client) Unregister(ctx context.Context, namespace, name string, on Targets) ([]Outcome, error) {
	return c.change(ctx, http.MethodPost, "/v1/registrations/remove", on, identified{identity{namespace, name}, on})
}

type registering struct {
	Process procfleet.ProcessSpec `json:"process"`
	Targets
}

type identified struct {
	Process identity `json:"process"`
	Targets
}

type identity struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// change makes a call that is answered with an outcome for each target.
func (c *Client) change(ctx context.Context, method, path string, on Targets, body any) ([]Outcome, error) {
	var answer struct {
		Results []Outcome `json:"results"`
	}
	if err := c.send(ctx, method, path, body, &answer); err != nil {
		return nil, err
	}
	return answer.Results, complete(path, len(answer.Results), on.count())
}

// send carries out a request with a body, however often it takes.
func (c *Client) send(ctx context.Context, method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	return c.do(ctx, request{method: method, path: path, body: text}, into)
}

// complete checks that an answer has an entry for everything that was asked.
func complete(path string, got, asked int) error {
	if got == asked {
		return nil
	}
	return fmt.Errorf("%s: %w: it has %d entries for %d hosts", path, ErrBadAnswer, got, asked)
}
