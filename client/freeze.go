package client

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/procfleet/procfleet"
)

// Freezing says how processes are to be frozen: automatic starts and limits
// are suspended, operations are carried out all the same.
type Freezing struct {
	// Namespace is whose processes; empty is all of the hosts.
	Namespace string             `json:"namespace,omitempty"`
	TTL       procfleet.Duration `json:"ttl"`              // 1 s to 24 h
	Reason    string             `json:"reason,omitempty"` // for people
}

// Frozen is what came of a [Freezing].
type Frozen struct {
	// Until is when it ends, by the server's clock; zero if nothing was frozen.
	Until   time.Time `json:"until,omitzero"`
	Results []Outcome `json:"results"` // of each of the hosts, then of the agents
}

// Lifted is what came of lifting freezes. The code is
// [procfleet.CodeNotRunning] where nothing was frozen, also if an attempt
// before has lifted it and its answer was lost.
type Lifted struct {
	Lifted  int       `json:"lifted"`  // how many freezes were ended
	Results []Outcome `json:"results"` // of each of the hosts, then of the agents
}

// Freeze freezes processes on hosts, of which there must be one.
func (c *Client) Freeze(ctx context.Context, f Freezing, on Targets) (Frozen, error) {
	if on.count() == 0 {
		return Frozen{}, errNoHosts
	}
	return c.freeze(ctx, f, on)
}

// FreezeEverywhere freezes a namespace on all hosts. The business is that of
// [Targets].
func (c *Client) FreezeEverywhere(ctx context.Context, f Freezing, business string) (Frozen, error) {
	if f.Namespace == "" {
		return Frozen{}, errNoNamespace
	}
	return c.freeze(ctx, f, Targets{Business: business})
}

// What is left out must not become more than was meant.
var (
	errNoHosts     = errors.New("no hosts are named: that does not mean everywhere")
	errNoNamespace = errors.New("no namespace is named: that does not mean all of them")
)

func (c *Client) freeze(ctx context.Context, f Freezing, on Targets) (Frozen, error) {
	var answer Frozen
	const path = "/v1/freezes"
	err := c.send(ctx, http.MethodPut, path, struct {
		Freezing
		Targets
	}{f, on}, &answer)
	if err != nil {
		return Frozen{}, err
	}
	return answer, complete(path, len(answer.Results), on.count())
}

// Lift ends freezes on hosts, of which there must be one: those of a
// namespace there, or, without one, those of all of the host. One of something
// larger or smaller stays.
func (c *Client) Lift(ctx context.Context, namespace string, on Targets) (Lifted, error) {
	if on.count() == 0 {
		return Lifted{}, errNoHosts
	}
	return c.lift(ctx, namespace, on)
}

// LiftEverywhere ends the freeze that [Client.FreezeEverywhere] made.
func (c *Client) LiftEverywhere(ctx context.Context, namespace, business string) (Lifted, error) {
	if namespace == "" {
		return Lifted{}, errNoNamespace
	}
	return c.lift(ctx, namespace, Targets{Business: business})
}

func (c *Client) lift(ctx context.Context, namespace string, on Targets) (Lifted, error) {
	var answer Lifted
	const path = "/v1/freezes"
	err := c.send(ctx, http.MethodDelete, path, struct {
		Namespace string `json:"namespace,omitempty"`
		Targets
	}{namespace, on}, &answer)
	if err != nil {
		return Lifted{}, err
	}
	return answer, complete(path, len(answer.Results), on.count())
}

// Freeze is what is frozen until a time. Its JSON is the API's.
type Freeze struct {
	Host      procfleet.Host `json:"host"`                // zero: everywhere
	Namespace string         `json:"namespace,omitempty"` // empty: all of the host
	Until     time.Time      `json:"until"`
	Reason    string         `json:"reason"`
	By        string         `json:"by"` // who asked
}

// Freezes yields what is frozen: namespaces everywhere, then by cloud area and
// address. It ends after the first error.
func (c *Client) Freezes(ctx context.Context, q Query) iter.Seq2[Freeze, error] {
	return all(q, func(q Query) (Page[Freeze], error) { return c.FreezePage(ctx, q) })
}

// FreezePage returns one page of [Client.Freezes].
func (c *Client) FreezePage(ctx context.Context, q Query) (Page[Freeze], error) {
	var answer struct {
		Freezes []Freeze `json:"freezes"`
		Next    string   `json:"next"`
	}
	q.State = ""
	err := c.do(ctx, get("/v1/freezes"+q.of("cursor")), &answer)
	return Page[Freeze]{answer.Freezes, answer.Next}, err
}
