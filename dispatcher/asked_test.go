package dispatcher

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// plainDialect is a dialect whose requests and responses are the internal types in JSON, so that
// tests of the dispatcher do not depend on a published form.
func plainDialect() dialect.Dialect {
	call := func(name string, endpoint dialect.Endpoint) dialect.Call {
		return dialect.Call{Name: "plain." + name, Paths: []string{"/" + name}, Methods: []string{http.MethodPost}, Endpoint: endpoint}
	}
	return dialect.Dialect{
		Name: "plain", Family: dialect.Family{
			Prefixes: []string{"/"},
			Credentials: func(*dialect.Request) (dialect.Credentials, error) {
				return dialect.Credentials{Application: "app"}, nil
			},
			Fail: func(f *dialect.Error, _ string) dialect.Reply {
				return dialect.Reply{Status: http.StatusTeapot, Body: map[string]string{"kind": f.Kind.String(), "field": f.Field, "problem": f.Problem}}
			},
			Calls: []dialect.Call{
				call("operate", dialect.Accept{
					Decode: asked[procfleet.Submission],
					Encode: func(id procfleet.TaskID, _ string) dialect.Reply { return answered(id) },
					Label:  func(h procfleet.Host) string { return "any:" + h.Addr.String() },
				}),
				call("register", dialect.Register{Decode: asked[dialect.Registering], Encode: told[dialect.Registering, []dialect.TargetOutcome]}),
				call("set_groups", dialect.SetGroups{Decode: asked[dialect.Grouping], Encode: told[dialect.Grouping, []dialect.TargetOutcome]}),
				call("groups", dialect.ShowGroups{Decode: asked[dialect.GroupQuery], Encode: told[dialect.GroupQuery, []dialect.TargetGroups]}),
				call("processes", dialect.ShowProcesses{Decode: asked[dialect.ProcessQuery], Encode: told[dialect.ProcessQuery, []dialect.ProcessEntry]}),
				call("list", dialect.ListProcesses{
					Decode: asked[dialect.ProcessPage],
					Encode: func(_ *dialect.ProcessPage, found dialect.ProcessEntries, _ string) dialect.Reply {
						return answered(listed{found.Entries, found.Total})
					},
				}),
				call("agents", dialect.ShowAgents{Decode: asked[dialect.AgentQuery], Encode: told[dialect.AgentQuery, []dialect.TargetAgent]}),
				call("freeze", dialect.Freeze{Decode: asked[dialect.Freezing], Encode: told[dialect.Freezing, dialect.Frozen]}),
				call("freezes", dialect.ListFreezes{
					Decode: asked[dialect.FreezePage],
					Encode: func(_ *dialect.FreezePage, found []catalog.Freeze, _ string) dialect.Reply { return answered(found) },
				}),
				call("edit", dialect.EditTemplates{Decode: asked[dialect.TemplateEdits], Encode: told[dialect.TemplateEdits, dialect.TemplatesEdited]}),
				call("bind", dialect.BindAgents{Decode: asked[dialect.AgentBinding], Encode: told[dialect.AgentBinding, []bool]}),
			},
		},
	}
}

type listed struct {
	Found []dialect.ProcessEntry
	Total int
}

func asked[Q any](r *dialect.Request) (q Q, err error) { return q, json.Unmarshal(r.Body, &q) }

func told[Q, A any](_ *Q, answer A, _ string) dialect.Reply { return answered(answer) }

func answered(answer any) dialect.Reply {
	return dialect.Reply{Status: http.StatusOK, Body: map[string]any{"answer": answer}}
}

func startPlainServer(t *testing.T, cfg Config, store Store, queue Queue) *testServer {
	t.Helper()
	d, err := newWithDialects([]dialect.Dialect{plainDialect()}, cfg, store, queue)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(d.Handler())
	t.Cleanup(server.Close)
	return &testServer{t: t, url: server.URL, store: store}
}

// ask sends a query to a call of the plain dialect, which must succeed, and returns the response.
func ask[A any](d *testServer, call string, question any) A {
	d.t.Helper()
	var in struct{ Answer A }
	got := d.call(http.MethodPost, "/"+call, text(d.t, question))
	if got.status != http.StatusOK {
		d.t.Fatalf("%s: %d %s", call, got.status, got.text)
	}
	if err := json.Unmarshal([]byte(got.text), &in); err != nil {
		d.t.Fatalf("%s: %v in %s", call, err, got.text)
	}
	return in.Answer
}

// refusedBy sends a query that must fail, and returns kind and problem of the error.
func refusedBy(d *testServer, call string, question any) (kind, problem string) {
	d.t.Helper()
	got := d.call(http.MethodPost, "/"+call, text(d.t, question))
	if got.status != http.StatusTeapot {
		d.t.Fatalf("%s: %d %s", call, got.status, got.text)
	}
	return got.body["kind"].(string), got.body["problem"].(string)
}

func text(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
