package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// asked is a request that a server received.
type asked struct{ call, body string }

// record serves the same response to all requests and records the requests.
func (n *network) record(answered string) *[]asked {
	var calls []asked
	n.serve("a", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			n.Error(err)
		}
		calls = append(calls, asked{r.Method + " " + r.URL.RequestURI(), string(body)})
		answer(w, http.StatusOK, answered)
	})
	return &calls
}

func hostNumber(n int) procfleet.Host {
	return procfleet.Host{Addr: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})}
}

func TestCallsAboutProcessesSayWhatTheyWereGiven(t *testing.T) {
	t.Parallel()
	on := client.Targets{Hosts: []procfleet.Host{hostNumber(1)}, Agents: []string{"a-2"}, Business: "2"}
	const (
		onText    = `"hosts":["0:10.0.0.1"],"agents":["a-2"],"business":"2"}`
		ident     = `{"process":{"namespace":"shop","name":"web"},` + onText
		web       = `{"process":{"namespace":"shop","name":"web","proc_name":"nginx","control":{},"alive":{"type":"","op_timeout":"0s","start_check_begin":"0s","start_check_end":"0s","stop_check":"0s","stop_grace":"0s","start_retries":0,"start_interval":"0s"}},` + onText
		outcomes  = `{"results":[{"host":"0:10.0.0.1","code":0,"message":"success"},{"host":"","agent_id":"a-2","code":117,"message":"nobody"}]}`
		processes = `{"processes":[{"host":"0:10.0.0.1","agent_id":"a-1","alive":true,"namespace":"shop","name":"web",
			"registration":{"process":{"proc_name":"nginx"},"registered_at":"2026-11-21T04:00:00Z"},
			"reported":{"proc_name":"nginx","desired":"up","status":{"at":"2026-11-21T05:35:00Z","running":true,"pid":42},"reported_at":"2026-11-21T05:35:00Z"}},
			{"host":"","agent_id":"a-2","alive":false,"namespace":"shop","name":"web","registration":null,"reported":null}],"total":1500,"next":"2"}`
	)
	process := procfleet.ProcessSpec{Namespace: "shop", Name: "web", ProcName: "nginx"}
	for name, test := range map[string]struct {
		call    func(ctx context.Context, c *client.Client) (any, error)
		answer  string
		want    asked
		answers string // the expected result, as text
	}{
		"register": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.Register(ctx, process, on) },
			outcomes,
			asked{"PUT /v1/registrations", web},
			`[{"host":"0:10.0.0.1","code":0,"message":"success"},{"host":"","agent_id":"a-2","code":117,"message":"nobody"}]`,
		},
		"register new": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.RegisterNew(ctx, process, on) },
			outcomes,
			asked{"POST /v1/registrations", web},
			"",
		},
		"unregister": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.Unregister(ctx, "shop", "web", on) },
			outcomes,
			asked{"POST /v1/registrations/remove", ident},
			"",
		},
		"processes on hosts": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.ProcessesOn(ctx, "shop", "web", on) },
			processes,
			asked{"POST /v1/processes/query", ident},
			"",
		},
		"processes": {
			func(ctx context.Context, c *client.Client) (any, error) {
				page, err := c.ProcessPage(ctx, "a&b", client.Query{PageSize: 2, Cursor: "7", Business: "2", State: "failed"})
				if page.Next != "2" {
					t.Errorf("next %q", page.Next)
				}
				p := page.Items[0]
				if !p.Alive || p.Registration.Process.ProcName != "nginx" || p.Reported.Desired != "up" || p.Reported.Status.PID != 42 || p.Reported.ReportedAt.IsZero() {
					t.Errorf("first process %+v", p)
				}
				return page.Items[1], err
			},
			processes,
			asked{"GET /v1/processes?business=2&limit=2&namespace=a%26b&start=7", ""},
			`{"host":"","agent_id":"a-2","alive":false,"namespace":"shop","name":"web","registration":null,"reported":null}`,
		},
		"set groups": {
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.SetGroups(ctx, client.Grouping{Namespace: "shop", Groups: []client.Group{{ID: "g", CPULimit: 50, CPUByLimit: true}}}, on)
			},
			outcomes,
			asked{"PUT /v1/groups", `{"namespace":"shop","groups":[{"id":"g","cpu_limit":50,"memory_limit":0,"cpu_by_limit":true,"memory_by_limit":false}],` + onText},
			"",
		},
		"no groups": {
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.SetGroups(ctx, client.Grouping{Namespace: "shop"}, on)
			},
			outcomes,
			asked{"PUT /v1/groups", `{"namespace":"shop","groups":[],` + onText},
			"",
		},
		"groups": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.GroupsOn(ctx, "shop", on) },
			`{"hosts":[{"host":"0:10.0.0.1","namespace":"shop","name":"web","groups":[{"id":"g","memory_limit":30}]},{"host":"","agent_id":"a-2","namespace":"shop","groups":[]}]}`,
			asked{"POST /v1/groups/query", `{"namespace":"shop",` + onText},
			`[{"host":"0:10.0.0.1","namespace":"shop","name":"web","groups":[{"id":"g","cpu_limit":0,"memory_limit":30,"cpu_by_limit":false,"memory_by_limit":false}]},{"host":"","agent_id":"a-2","namespace":"shop","groups":[]}]`,
		},
		"agents": {
			func(ctx context.Context, c *client.Client) (any, error) {
				found, err := c.AgentsOn(ctx, on)
				return fmt.Sprint(found[0].Agent.Version, found[1].Agent == nil), err
			},
			`{"agents":[{"host":"0:10.0.0.1","agent":{"host":"0:10.0.0.1","agent_id":"a-1","version":"1.0.0"}},{"host":"","agent_id":"a-2","agent":null}]}`,
			asked{"POST /v1/agents/query", "{" + onText},
			`"1.0.0true"`,
		},
		"bindings": {
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.BindAgents(ctx, []client.Binding{{Host: hostNumber(1), AgentID: "a-1"}, {Host: hostNumber(2), AgentID: "a-2"}}, "2")
			},
			`{"results":[{"host":"0:10.0.0.1","agent_id":"a-1","bound":true},{"host":"0:10.0.0.2","agent_id":"a-2","bound":false}]}`,
			asked{"POST /v1/agents/bindings", `{"bindings":[{"host":"0:10.0.0.1","agent_id":"a-1"},{"host":"0:10.0.0.2","agent_id":"a-2"}],"business":"2"}`},
			`[{"host":"0:10.0.0.1","agent_id":"a-1","bound":true},{"host":"0:10.0.0.2","agent_id":"a-2","bound":false}]`,
		},
		"freeze": {
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Freeze(ctx, client.Freezing{Namespace: "shop", TTL: procfleet.Seconds(90), Reason: "release"}, on)
			},
			`{"until":"2026-11-21T07:35:22Z",` + outcomes[1:],
			asked{"PUT /v1/freezes", `{"namespace":"shop","ttl":"1m30s","reason":"release",` + onText},
			`{"until":"2026-11-21T07:35:22Z","results":[{"host":"0:10.0.0.1","code":0,"message":"success"},{"host":"","agent_id":"a-2","code":117,"message":"nobody"}]}`,
		},
		"freeze everywhere": {
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.FreezeEverywhere(ctx, client.Freezing{Namespace: "shop", TTL: procfleet.Seconds(1)}, "2")
			},
			`{"until":"2026-11-21T07:35:22Z","results":[]}`,
			asked{"PUT /v1/freezes", `{"namespace":"shop","ttl":"1s","business":"2"}`},
			"",
		},
		"lift": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.Lift(ctx, "", on) },
			`{"lifted":1,` + outcomes[1:],
			asked{"DELETE /v1/freezes", "{" + onText},
			"",
		},
		"lift everywhere": {
			func(ctx context.Context, c *client.Client) (any, error) { return c.LiftEverywhere(ctx, "shop", "2") },
			`{"lifted":1,"results":[]}`,
			asked{"DELETE /v1/freezes", `{"namespace":"shop","business":"2"}`},
			`{"lifted":1,"results":[]}`,
		},
		"freezes": {
			func(ctx context.Context, c *client.Client) (any, error) {
				page, err := c.FreezePage(ctx, client.Query{PageSize: 2, Cursor: "0:10.0.0.1/a&b"})
				if page.Next != "/shop" {
					t.Errorf("next %q", page.Next)
				}
				return page.Items, err
			},
			`{"freezes":[{"host":"","namespace":"shop","until":"2026-11-21T07:35:22Z","reason":"r","by":"ci"}],"next":"/shop"}`,
			asked{"GET /v1/freezes?cursor=0%3A10.0.0.1%2Fa%26b&limit=2", ""},
			`[{"host":"","namespace":"shop","until":"2026-11-21T07:35:22Z","reason":"r","by":"ci"}]`,
		},
		"events": {
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.EventPage(ctx, client.EventQuery{Host: hostNumber(1), Kind: "gave_up", After: "7", PageSize: 2})
			},
			`{"events":[{"sequence":8,"received_at":"2026-11-21T05:35:23Z","at":"2026-11-21T05:35:22Z","host":"0:10.0.0.1","kind":"gave_up","message":"m"}],"next":"9","more":true}`,
			asked{"GET /v1/events?after=7&host=0%3A10.0.0.1&kind=gave_up&limit=2", ""},
			`{"events":[{"sequence":8,"received_at":"2026-11-21T05:35:23Z","at":"2026-11-21T05:35:22Z","host":"0:10.0.0.1","kind":"gave_up","message":"m"}],"next":"9","more":true}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				calls := t.record(test.answer)
				got, err := test.call(t.Context(), t.client(client.Config{}))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]asked{test.want}, *calls, cmp.AllowUnexported(asked{})); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				text, err := json.Marshal(got)
				if err != nil {
					t.Fatal(err)
				}
				if test.answers != "" && string(text) != test.answers {
					t.Errorf("answer %s", text)
				}
			})
		})
	}
}

func TestAnOperationOnWhatIsRegisteredIsSubmittedByItsName(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := t.record(`{"id":"GSETASK:1:2"}`)
		_, err := t.client(client.Config{}).Submit(t.Context(), client.Submission{Lenient: true, Operations: []client.Operation{
			{Action: procfleet.ActionRestart, Registered: true, Process: procfleet.ProcessSpec{Namespace: "shop", Name: "web"}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{`"registered":true`, `"strict":false`, `"namespace":"shop","name":"web"`} {
			if body := (*calls)[0].body; !strings.Contains(body, part) {
				t.Errorf("%s lacks %s", body, part)
			}
		}
	})
}

func TestManyHostsAreAskedAboutInParts(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		var sizes []int
		t.serve("a", func(w http.ResponseWriter, r *http.Request) {
			var on client.Targets
			if err := json.NewDecoder(r.Body).Decode(&on); err != nil {
				t.Error(err)
			}
			sizes = append(sizes, len(on.Hosts), len(on.Agents))
			var found []client.Process
			for _, host := range on.Hosts {
				found = append(found, client.Process{Host: host})
			}
			for _, id := range on.Agents {
				found = append(found, client.Process{AgentID: id})
			}
			text, err := json.Marshal(map[string]any{"processes": found})
			if err != nil {
				t.Error(err)
			}
			answer(w, http.StatusOK, string(text))
		})
		var on client.Targets
		for i := range 1500 {
			on.Hosts = append(on.Hosts, hostNumber(i+1))
		}
		for i := range 800 {
			on.Agents = append(on.Agents, fmt.Sprint("a-", i))
		}
		found, err := t.client(client.Config{}).ProcessesOn(t.Context(), "shop", "web", on)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(sizes) != "[1000 0 500 500 0 300]" {
			t.Errorf("asked about %v", sizes)
		}
		if len(found) != 2300 || found[1499].Host != hostNumber(1500) || found[2299].AgentID != "a-799" {
			t.Errorf("%d answers", len(found))
		}
	})
}

func TestARegistrationIsRepeatedUntilAServerAnswers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		attempts := 0
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			if attempts++; attempts == 1 {
				cut()
			}
			answer(w, http.StatusServiceUnavailable, unavailable)
		})
		t.serve("b", func(w http.ResponseWriter, _ *http.Request) {
			if attempts++; attempts < 4 {
				answer(w, http.StatusServiceUnavailable, unavailable)
				return
			}
			answer(w, http.StatusOK, `{"results":[{"host":"0:10.0.0.1","code":0,"message":"success"}]}`)
		})
		outcomes, err := t.client(client.Config{URL: "http://a,http://b"}).Register(t.Context(), procfleet.DefaultSpec(), client.Targets{Hosts: []procfleet.Host{hostNumber(1)}})
		if err != nil || len(outcomes) != 1 || attempts != 4 {
			t.Errorf("%v, %v after %d attempts", outcomes, err, attempts)
		}
	})
}

func TestAnAnswerThatForgetsAHostIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		t.record(`{}`)
		c, on := t.client(client.Config{}), client.Targets{Hosts: []procfleet.Host{hostNumber(1)}}
		for name, call := range map[string]func() error{
			"register":  func() error { _, err := c.Register(t.Context(), procfleet.DefaultSpec(), on); return err },
			"processes": func() error { _, err := c.ProcessesOn(t.Context(), "shop", "web", on); return err },
			"groups":    func() error { _, err := c.GroupsOn(t.Context(), "shop", on); return err },
			"agents":    func() error { _, err := c.AgentsOn(t.Context(), on); return err },
			"bindings":  func() error { _, err := c.BindAgents(t.Context(), make([]client.Binding, 1), ""); return err },
			"freeze":    func() error { _, err := c.Freeze(t.Context(), client.Freezing{}, on); return err },
			"lift":      func() error { _, err := c.Lift(t.Context(), "", on); return err },
		} {
			if err := call(); !errors.Is(err, client.ErrBadResponse) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestWhatIsLeftOutIsNotEverywhere(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := t.record(`{"results":[]}`)
		c := t.client(client.Config{})
		for name, call := range map[string]func() error{
			"freeze": func() error {
				_, err := c.Freeze(t.Context(), client.Freezing{Namespace: "shop"}, client.Targets{})
				return err
			},
			"freeze everywhere": func() error { _, err := c.FreezeEverywhere(t.Context(), client.Freezing{}, ""); return err },
			"lift":              func() error { _, err := c.Lift(t.Context(), "shop", client.Targets{}); return err },
			"lift everywhere":   func() error { _, err := c.LiftEverywhere(t.Context(), "", ""); return err },
		} {
			if err := call(); err == nil {
				t.Errorf("%s of nothing is no error", name)
			}
		}
		if len(*calls) > 0 {
			t.Errorf("asked %v", *calls)
		}
	})
}

func TestEventsAreFollowedFromPageToPage(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		var asked []string
		t.serve("a", func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Query().Get("after"))
			n := len(asked)
			answer(w, http.StatusOK, fmt.Sprintf(`{"events":[{"sequence":%d,"host":"0:10.0.0.1","kind":"k","message":""}],"next":"%d","more":%t}`, n, 10*n, n == 1))
		})
		c := t.client(client.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, n := time.Now(), 0
		var ended error
		for e, err := range c.FollowEvents(ctx, client.EventQuery{}, time.Minute) {
			if ended = err; err != nil {
				break
			}
			if n++; e.Sequence != uint64(n) {
				t.Errorf("event %d is %d", n, e.Sequence)
			}
			if n == 3 {
				cancel()
			}
		}
		if diff := cmp.Diff([]string{"", "10", "20"}, asked); diff != "" || !errors.Is(ended, context.Canceled) {
			t.Errorf("ended with %v\n%s", ended, diff)
		}
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("waited %v between three pages of which one had more", waited)
		}
		n = 0
		for _, err := range c.Events(t.Context(), client.EventQuery{}) {
			if n++; err != nil {
				t.Error(err)
			}
		}
		if n != 1 {
			t.Errorf("without following there are %d events", n)
		}
	})
}
