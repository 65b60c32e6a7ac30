package dialect

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
)

// The native API can express every request of the other dialects. The test decodes every fixture
// of the other dialects, encodes the result in the native form, decodes it again, and compares.
func TestTheNativeFormCanSayWhatEveryDialectSays(t *testing.T) {
	t.Parallel()
	said := 0
	for _, d := range All() {
		if d.Name == "native" {
			continue
		}
		routes := newRoutes(&d)
		for _, file := range fixtures(t, &d) {
			for _, c := range file.Cases {
				at := routes.place(t, c.Request)
				decoded, ok := decodeAsked(t, at.call.Endpoint, (&fixture{c}).request(at))
				if !ok || catalogued(at.call.Endpoint) {
					continue
				}
				said++
				t.Run(d.Name+"/"+c.Name, func(t *testing.T) {
					t.Parallel()
					call, r := inNative(t, decoded)
					again, ok := decodeAsked(t, endpointOf(t, call), r)
					if !ok {
						t.Fatalf("%s refuses %s", call, r.Body)
					}
					if diff := cmp.Diff(meaning(t, decoded), meaning(t, again)); diff != "" {
						t.Errorf("-%s +%s:\n%s", at.call.Name, call, diff)
					}
				})
			}
		}
	}
	if said < 10 {
		t.Errorf("only %d fixtures of other dialects ask for something", said)
	}
}

// catalogued reports whether a call is about the catalog of a business, which
// the native API reads and saves in another way, by names.
func catalogued(endpoint Endpoint) bool {
	switch endpoint.(type) {
	case EditTemplates, DeleteTemplate, ShowTemplate, SearchTemplates, ShowModules:
		return true
	}
	return false
}

// decodeAsked decodes a request. ok is false for a rejected request and for a request that only
// names a task.
func decodeAsked(t *testing.T, endpoint Endpoint, r *Request) (decoded any, ok bool) {
	t.Helper()
	var err error
	switch use := endpoint.(type) {
	case Accept:
		decoded, err = use.Decode(r)
	case Register:
		decoded, err = use.Decode(r)
	case SetGroups:
		decoded, err = use.Decode(r)
	case LabelHosts:
		decoded, err = use.Decode(r)
	case ShowGroups:
		decoded, err = use.Decode(r)
	case ShowProcesses:
		decoded, err = use.Decode(r)
	case ListProcesses:
		decoded, err = use.Decode(r)
	case ShowAgents:
		decoded, err = use.Decode(r)
	case BindAgents:
		decoded, err = use.Decode(r)
	case Freeze:
		decoded, err = use.Decode(r)
	case SetPolicies:
		decoded, err = use.Decode(r)
	case SetSchedule:
		decoded, err = use.Decode(r)
	case SetWebhook:
		decoded, err = use.Decode(r)
	case Redeliver:
		decoded, err = use.Decode(r)
	case SetTopology:
		decoded, err = use.Decode(r)
	case EditTopology:
		decoded, err = use.Decode(r)
	case SaveTemplates:
		decoded, err = use.Decode(r)
	case EditTemplates:
		decoded, err = use.Decode(r)
	case SearchTemplates:
		decoded, err = use.Decode(r)
	default:
		return nil, false
	}
	if err != nil {
		if !errors.As(err, new(*Error)) {
			t.Error(err)
		}
		return nil, false
	}
	return decoded, true
}

// endpointOf returns the endpoint of a call.
func endpointOf(t *testing.T, name string) Endpoint {
	t.Helper()
	for _, d := range All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				if call.Name == name {
					return call.Endpoint
				}
			}
		}
	}
	t.Fatalf("there is no call %s", name)
	return nil
}

// inNative encodes a decoded request in the native form.
func inNative(t *testing.T, asked any) (call string, r *Request) {
	t.Helper()
	var body map[string]any
	switch q := asked.(type) {
	case procfleet.Submission:
		operations := make([]map[string]any, len(q.Operations))
		for i := range q.Operations {
			o := &q.Operations[i]
			operations[i] = naming(o.Targets, map[string]any{"action": o.Action, "process": o.Process, "registered": o.Registered})
		}
		body = map[string]any{"operations": operations, "strict": false, "business": q.Business}
		if q.Timeout != 0 {
			body["timeout"] = q.Timeout.String()
		}
		call = "native"
	case Registering:
		body = naming(q.Targets, map[string]any{"process": q.Process, "strict": false, "business": q.Business})
		if q.Mode == Unregister {
			body["process"] = map[string]any{"namespace": q.Process.Namespace, "name": q.Process.Name}
			delete(body, "strict")
		}
		call = map[RegisterMode]string{RegisterNew: "native.register_new", RegisterAny: "native.register", Unregister: "native.unregister"}[q.Mode]
	case Grouping:
		body = naming(q.Targets, map[string]any{
			"namespace": q.Groups.Namespace, "name": q.Groups.Name, "labels": q.Groups.Labels, "groups": q.Groups.Groups, "business": q.Business,
		})
		call = "native.set_groups"
	case GroupQuery:
		body = naming(q.Targets, map[string]any{"namespace": q.Namespace, "business": q.Business})
		call = "native.groups"
	case ProcessQuery:
		body = naming(q.Targets, map[string]any{"process": map[string]any{"namespace": q.Namespace, "name": q.Name}, "business": q.Business})
		call = "native.process"
	case ProcessPage:
		return "native.processes", &Request{Method: http.MethodGet, Query: url.Values{
			"namespace": {q.Namespace}, "start": {strconv.Itoa(q.Start)}, "limit": {strconv.Itoa(q.Limit)}, "business": {q.Business},
		}}
	case AgentQuery:
		body = naming(q.Targets, map[string]any{"business": q.Business})
		call = "native.agents"
	case AgentBinding:
		var bindings []map[string]any
		for _, target := range bindable(q) {
			bindings = append(bindings, map[string]any{"host": target.Host, "agent_id": target.AgentID})
		}
		body = map[string]any{"bindings": bindings, "business": q.Business}
		call = "native.bind_agents"
	default:
		t.Fatalf("%T has no native form", asked)
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return call, &Request{Method: http.MethodPost, Body: text}
}

// naming adds targets to a body.
func naming(targets []procfleet.Target, body map[string]any) map[string]any {
	hosts, agents := []procfleet.Host{}, []string{}
	for _, target := range targets {
		if name, isHost := who(target); isHost {
			hosts = append(hosts, target.Host)
		} else {
			agents = append(agents, name)
		}
	}
	body["hosts"], body["agents"] = hosts, agents
	return body
}

// who returns the host or agent that a target names. For a target with neither an address nor an
// agent id it returns the label, as if it were an unknown agent's id.
func who(t procfleet.Target) (name string, isHost bool) {
	switch {
	case !t.Host.IsZero():
		return t.Host.String(), true
	case t.AgentID != "":
		return t.AgentID, false
	}
	return t.Label, false
}

// bindable returns the targets that have an address, without labels. A target without an address
// is never bound: published calls report that, and the native call rejects it.
func bindable(q AgentBinding) []procfleet.Target {
	var targets []procfleet.Target
	for _, target := range q.Targets {
		if target.Label = ""; !target.Host.IsZero() {
			targets = append(targets, target)
		}
	}
	return targets
}

// meaning returns a decoded request in a form in which requests of different dialects compare as
// equal: targets by host or agent, not by spelling, and without empty members.
func meaning(t *testing.T, asked any) any {
	t.Helper()
	if binding, ok := asked.(AgentBinding); ok { // which is about both names of a host
		asked = bindable(binding)
	}
	text, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	var said any
	if err := json.Unmarshal(text, &said); err != nil {
		t.Fatal(err)
	}
	return essential(said)
}

func essential(said any) any {
	switch v := said.(type) {
	case map[string]any:
		for name := range maps.Clone(v) {
			if v[name] = essential(v[name]); v[name] == nil {
				delete(v, name)
			}
		}
		// The server completes missing members of a published call from the registration. The
		// native form contains the whole spec, or refers to the registration.
		delete(v, "over")
		if targets, ok := v["targets"].([]any); ok {
			v["targets"] = names(targets)
		}
		if v["instances"] == 1.0 { // as 0 and as nothing
			delete(v, "instances")
		}
		if v["shell"] == string(procfleet.ShellSh) {
			delete(v, "shell")
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = essential(v[i])
		}
	case string:
		if v == "" {
			return nil
		}
	}
	return said
}

// names returns the hosts and agents of targets, sorted.
func names(targets []any) []string {
	var named []string
	for _, target := range targets {
		fields, _ := target.(map[string]any)
		text := func(name string) string { s, _ := fields[name].(string); return s }
		host, _ := procfleet.ParseHost(text("h")) // no host is the zero one
		name, isHost := who(procfleet.Target{Host: host, AgentID: text("i"), Label: text("l")})
		named = append(named, map[bool]string{true: "host ", false: "name "}[isHost]+name)
	}
	slices.Sort(named)
	return named
}
