package agentproto

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// HostToken writes an address as one subject token: '.' and ':' become '-'.
//
//	10.0.0.1 → 10-0-0-1     fd00::1 → fd00--1
func HostToken(addr netip.Addr) string {
	token := []byte(addr.String())
	for i, c := range token {
		if c == '.' || c == ':' {
			token[i] = '-'
		}
	}
	return string(token)
}

// AgentSubject is where the agent of a host takes commands.
//
//	procfleet.agent.0.10-0-0-1
func AgentSubject(cloud int64, addr netip.Addr) string {
	return agentPrefix + strconv.FormatInt(cloud, 10) + "." + HostToken(addr)
}

const (
	agentPrefix  = "procfleet.agent."
	answerPrefix = "procfleet.answer."
)

// AnswerSubject is the subject of an agent's reply to a request on the subject
// asked; id is "<worker>.<request>". It names the host, so that an agent can be
// restricted to replies of its own host.
//
//	procfleet.answer.0.10-0-0-1.1zk3x9.4-0-1
func AnswerSubject(asked, id string) string {
	return answerPrefix + strings.TrimPrefix(asked, agentPrefix) + "." + id
}

// AnswersTo matches the replies of every host to requests with these ids,
// "<worker>.*".
//
//	procfleet.answer.*.*.1zk3x9.*
func AnswersTo(ids string) string { return answerPrefix + "*.*." + ids }

// AgentInbox is the prefix of the subjects on which the agent of a host receives
// replies.
//
//	_INBOX.0.10-0-0-1
func AgentInbox(cloud int64, addr netip.Addr) string {
	return "_INBOX." + strconv.FormatInt(cloud, 10) + "." + HostToken(addr)
}

// ToAgent reports whether a reply subject is the inbox of an agent. Servers reply
// to no other subject: a malicious agent could name any subject, and have a
// server publish there.
func ToAgent(reply string) bool { return strings.HasPrefix(reply, "_INBOX.") }

// AgentQueue is the queue group in which an agent subscribes to its subject.
const AgentQueue = "agent"

// PresenceSubject is where the agents of a cloud area announce themselves.
//
//	procfleet.presence.0
func PresenceSubject(cloud int64) string {
	return "procfleet.presence." + strconv.FormatInt(cloud, 10)
}

// PresenceAll matches every cloud area's presence subject.
const PresenceAll = "procfleet.presence.*"

// ProcessesSubject is where the agents of a cloud area report their processes.
//
//	procfleet.processes.0
func ProcessesSubject(cloud int64) string {
	return "procfleet.processes." + strconv.FormatInt(cloud, 10)
}

// ProcessesAll matches every cloud area's subject of process reports.
const ProcessesAll = "procfleet.processes.*"

// ResultSubject is where agents send results to workers.
//
//	procfleet.result.s.0
func ResultSubject(lane string, cloud int64) string {
	return "procfleet.result." + lane + "." + strconv.FormatInt(cloud, 10)
}

// ResultsOfLane matches the result subjects of a lane in every cloud area.
//
//	procfleet.result.s.*
func ResultsOfLane(lane string) string { return "procfleet.result." + lane + ".*" }

// ValidLane reports an error unless lane is one subject token of lower-case
// letters and digits.
func ValidLane(lane string) error {
	if lane == "" || strings.Trim(lane, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("lane %q is not a word of lower-case letters and digits", lane)
	}
	return nil
}
