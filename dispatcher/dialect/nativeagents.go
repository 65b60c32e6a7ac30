package dialect

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
)

func decodeAgentQuery(r *Request) (AgentQuery, error) {
	var params struct {
		nativeTargets
		Business string `json:"business"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return AgentQuery{}, err
	}
	if err := tooLong("business", params.Business, procfleet.MaxKey); err != nil {
		return AgentQuery{}, refused(err, same)
	}
	targets, err := params.some(maxPage)
	return AgentQuery{Business: params.Business, Targets: targets}, err
}

// nativeAgent is the live agent of a host.
type nativeAgent struct {
	nativeTarget
	Agent *Agent `json:"agent"` // null if there is none
}

func nativeShowAgents(_ *AgentQuery, found []TargetAgent, _ string) Reply {
	agents := make([]nativeAgent, 0, len(found))
	for _, f := range found {
		agents = append(agents, nativeAgent{newNativeTarget(f.Target), f.Agent})
	}
	return Reply{Status: http.StatusOK, Body: struct {
		Agents []nativeAgent `json:"agents"`
	}{agents}}
}

func decodeAgentBinding(r *Request) (AgentBinding, error) {
	var params struct {
		Bindings []struct {
			Host    string `json:"host"`
			AgentID string `json:"agent_id"`
		} `json:"bindings"`
		Business string `json:"business"`
	}
	if err := decodeNativeBody(r, &params); err != nil {
		return AgentBinding{}, err
	}
	if err := tooLong("business", params.Business, procfleet.MaxKey); err != nil {
		return AgentBinding{}, refused(err, same)
	}
	if len(params.Bindings) == 0 {
		return AgentBinding{}, required("bindings")
	}
	q := AgentBinding{Business: params.Business, Targets: make([]procfleet.Target, 0, len(params.Bindings))}
	for i, b := range params.Bindings {
		at := "bindings[" + strconv.Itoa(i) + "]."
		host, err := procfleet.ParseHost(b.Host)
		if err != nil {
			return AgentBinding{}, invalid(at+"host", "%s", err.Error())
		}
		if b.AgentID == "" || len(b.AgentID) > procfleet.MaxKey || strings.ContainsRune(b.AgentID, 0) {
			return AgentBinding{}, invalid(at+"agent_id", "is not an agent id")
		}
		q.Targets = append(q.Targets, procfleet.Target{Host: host, AgentID: b.AgentID})
	}
	return q, nil
}

// nativeBinding says whether a host is named by an agent id from now on.
type nativeBinding struct {
	nativeTarget
	Bound bool `json:"bound"`
}

func nativeBound(q *AgentBinding, bound []bool, _ string) Reply {
	results := make([]nativeBinding, 0, len(bound))
	for i := range bound {
		results = append(results, nativeBinding{newNativeTarget(q.Targets[i]), bound[i]})
	}
	return Reply{Status: http.StatusOK, Body: struct {
		Results []nativeBinding `json:"results"`
	}{results}}
}
