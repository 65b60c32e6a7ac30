package dialect

import (
	"net/http"
	"strconv"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

func decodeAgentHosts(params *gseWhere) (AgentQuery, error) {
	targets, err := params.asked(gseAddress)
	return AgentQuery{Targets: targets}, err
}

// decodeAgentIDs decodes the calls that request agents by agent id.
func decodeAgentIDs(params *gseWhere) (AgentQuery, error) {
	if len(params.Agents) == 0 {
		return AgentQuery{}, required("agent_id_list")
	}
	targets, err := params.asked(gseAddress)
	return AgentQuery{Targets: targets}, err
}

func gseAgentStatus(q *AgentQuery, found []TargetAgent, requestID string) Reply {
	return gseAnswer(keyed(q.Targets, procfleet.Target.Key, func(b rendered, i int) rendered {
		b = gseAgentHost(append(b, '{'), q, found, i)
		return append(b.number("bk_agent_alive", int64(bit(found[i].Agent != nil))), '}')
	}), requestID)
}

// gseAgentInfo returns an entry for every host, with or without an agent: bk-nodeman
// adds the response of get_agent_status to these entries and expects all hosts. The
// parent is always empty, because agents in other networks connect to the message
// bus and not to a parent agent.
func gseAgentInfo(q *AgentQuery, found []TargetAgent, requestID string) Reply {
	return gseAnswer(keyed(q.Targets, procfleet.Target.Key, func(b rendered, i int) rendered {
		version := ""
		if agent := found[i].Agent; agent != nil {
			version = publishedVersion(agent.Version)
		}
		b = gseAgentHost(append(b, '{'), q, found, i).text("version", version)
		return append(b.text("parent_ip", "").number("parent_port", 0), '}')
	}), requestID)
}

func gseAgentHost(b rendered, q *AgentQuery, found []TargetAgent, i int) rendered {
	h := hostAsked(q.Targets[i], found[i].Target.Host, false)
	return b.text("ip", h.IP).number("bk_cloud_id", int64(h.CloudID))
}

// Numbers in responses of the cluster calls. An agent is either live, or nothing is
// known about it.
const (
	gseAgentRunning  = 2
	gseAgentNotFound = -2
	gseAgentMode     = 1  // an agent that is not a proxy
	gseUnknown       = -1 // unknown, because the agent is not found
	// gseNoAgent is the code for agents that are not found.
	gseNoAgent = 1011003
)

const gseNoAgentMessage = "no live agent has this id"

// gseAgentState is the state of one agent.
type gseAgentState struct {
	AgentID    string `json:"bk_agent_id"` // as in the request
	CloudID    int64  `json:"bk_cloud_id"`
	Version    string `json:"version"`
	RunMode    int    `json:"run_mode"`
	StatusCode int    `json:"status_code"`
}

func agentState(asked procfleet.Target, agent *v1.Agent) gseAgentState {
	s := gseAgentState{AgentID: asked.AgentID, CloudID: gseUnknown, RunMode: gseUnknown, StatusCode: gseAgentNotFound}
	if !asked.Host.IsZero() {
		s.CloudID = int64(asked.Host.Cloud)
	}
	if agent != nil {
		s.CloudID, s.Version = int64(agent.Host.Cloud), publishedVersion(agent.Version)
		s.RunMode, s.StatusCode = gseAgentMode, gseAgentRunning
	}
	return s
}

func gseAgentStates(q *AgentQuery, found []TargetAgent, requestID string) Reply {
	states := make([]gseAgentState, 0, len(found))
	live := false
	for i := range found {
		states = append(states, agentState(q.Targets[i], found[i].Agent))
		live = live || found[i].Agent != nil
	}
	if !live {
		return Reply{Status: http.StatusOK, Body: envelope{
			Code: gseNoAgent, Message: "none of the " + strconv.Itoa(len(found)) + " agents is found: " + gseNoAgentMessage, RequestID: requestID,
		}}
	}
	return gseAnswer(states, requestID)
}

// gseAgentDetail is the published description of one agent.
type gseAgentDetail struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	gseAgentState
	IP         string  `json:"bk_host_ip"`
	OS         string  `json:"bk_os_type"`
	ReportTime int64   `json:"report_time"` // Unix milliseconds
	ParentIP   string  `json:"parent_ip"`
	ParentPort int     `json:"parent_port"`
	CPURate    float64 `json:"cpu_rate"`   // percent of the host
	MemRate    float64 `json:"mem_rate"`   // percent of the host
	StartTime  int64   `json:"start_time"` // Unix milliseconds
	Status     string  `json:"status"`
	// The last known status equals the current one: earlier states are not stored.
	LastStatusCode int    `json:"last_status_code"`
	LastStatus     string `json:"last_status"`
	Remark         string `json:"remark"`
}

func gseAgentInfos(q *AgentQuery, found []TargetAgent, requestID string) Reply {
	infos := make([]gseAgentDetail, 0, len(found))
	for i := range found {
		infos = append(infos, agentDetail(q.Targets[i], found[i].Agent))
	}
	return gseAnswer(infos, requestID)
}

func agentDetail(asked procfleet.Target, agent *v1.Agent) gseAgentDetail {
	d := gseAgentDetail{gseAgentState: agentState(asked, agent)}
	d.LastStatusCode = d.StatusCode
	if agent == nil {
		d.Code, d.Message = gseNoAgent, gseNoAgentMessage
		d.Status, d.LastStatus = "not_found", "not_found"
		if !asked.Host.IsZero() {
			d.IP = asked.Host.Addr.String()
		}
		return d
	}
	d.Message, d.Status, d.LastStatus = "success", "running", "running"
	d.IP, d.OS = agent.Host.Addr.String(), agent.OS
	d.ReportTime, d.StartTime = agent.SeenAt.UnixMilli(), agent.StartedAt.UnixMilli()
	d.CPURate, d.MemRate = agent.CPU, agent.Memory
	if agent.Conflict {
		d.Remark = "another agent claims to be this host; neither changes anything until one of them is gone"
	}
	return d
}

type gseUpgrade struct {
	Hosts []gseHost `json:"hosts"`
}

func decodeUpgrade(params *gseUpgrade) (AgentBinding, error) {
	if len(params.Hosts) == 0 {
		return AgentBinding{}, required("hosts")
	}
	where := gseWhere{Hosts: params.Hosts}
	targets, err := where.targets("", gseAddress)
	if err != nil {
		return AgentBinding{}, err
	}
	for i := range params.Hosts {
		field, id := "hosts["+strconv.Itoa(i)+"].bk_agent_id", params.Hosts[i].AgentID
		switch {
		case id == "":
			return AgentBinding{}, required(field)
		case !possibleKey(id):
			return AgentBinding{}, invalid(field, "is not an agent id")
		}
		targets[i].AgentID = id
	}
	return AgentBinding{Targets: targets}, nil
}

// gseUpgraded writes hosts as the caller did, because bk-nodeman searches the response
// for them.
func gseUpgraded(q *AgentBinding, bound []bool, requestID string) Reply {
	data := struct {
		Success []string `json:"success"`
		Failed  []string `json:"failed"`
	}{[]string{}, []string{}}
	for i, t := range q.Targets {
		if bound[i] {
			data.Success = append(data.Success, t.Key())
		} else {
			data.Failed = append(data.Failed, t.Key())
		}
	}
	return gseAnswer(data, requestID)
}
