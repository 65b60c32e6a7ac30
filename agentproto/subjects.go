package agentproto

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// HostToken returns addr as a single subject token: '.' and ':' become '-'.
//
//	10.0.0.1 → 10-0-0-1     fd00::1 → fd00--1
func HostToken(addr netip.Addr) string { return hyphens.Replace(addr.String()) }

var hyphens = strings.NewReplacer(".", "-", ":", "-")

// AgentSubject returns the subject on which the agent of a host receives commands.
//
//	procfleet.agent.0.10-0-0-1
func AgentSubject(cloud int64, addr netip.Addr) string {
	return agentPrefix + strconv.FormatInt(cloud, 10) + "." + HostToken(addr)
}

const (
	agentPrefix  = "procfleet.agent."
	answerPrefix = "procfleet.answer."
)

// AnswerSubject returns the subject for an agent's reply to a request that was sent
// to the subject to; id is "<worker>.<request>". The subject contains the host, so
// that NATS permissions can restrict an agent to replies of its own host.
//
//	procfleet.answer.0.10-0-0-1.1zk3x9.4-0-1
func AnswerSubject(to, id string) string {
	return answerPrefix + strings.TrimPrefix(to, agentPrefix) + "." + id
}

// AnswersTo returns the subject filter for the replies of all hosts to requests
// with these ids, "<worker>.*".
//
//	procfleet.answer.*.*.1zk3x9.*
func AnswersTo(ids string) string { return answerPrefix + "*.*." + ids }

// AgentInbox returns the subject prefix under which the agent of a host receives
// replies.
//
//	_INBOX.0.10-0-0-1
func AgentInbox(cloud int64, addr netip.Addr) string {
	return "_INBOX." + strconv.FormatInt(cloud, 10) + "." + HostToken(addr)
}

// ToAgent reports whether a reply subject is an agent's inbox. Servers send
// replies to no other subject: otherwise a malicious agent could make a server
// publish on any subject.
func ToAgent(reply string) bool { return strings.HasPrefix(reply, "_INBOX.") }

// AgentQueue is the queue group of an agent's subscription to its subject.
const AgentQueue = "agent"

// PresenceSubject returns the subject on which the agents of a cloud area announce themselves.
//
//	procfleet.presence.0
func PresenceSubject(cloud int64) string {
	return "procfleet.presence." + strconv.FormatInt(cloud, 10)
}

// PresenceAll matches the presence subjects of all cloud areas.
const PresenceAll = "procfleet.presence.*"

// ProcessesSubject returns the subject on which the agents of a cloud area report processes.
//
//	procfleet.processes.0
func ProcessesSubject(cloud int64) string {
	return "procfleet.processes." + strconv.FormatInt(cloud, 10)
}

// ProcessesAll matches the process report subjects of all cloud areas.
const ProcessesAll = "procfleet.processes.*"

// ResultSubject returns the subject to which agents send results.
//
//	procfleet.result.s.0
func ResultSubject(lane string, cloud int64) string {
	return "procfleet.result." + lane + "." + strconv.FormatInt(cloud, 10)
}

// ResultsOfLane matches the result subjects of a lane in all cloud areas.
//
//	procfleet.result.s.*
func ResultsOfLane(lane string) string { return "procfleet.result." + lane + ".*" }

// ValidLane returns an error unless lane is one subject token of lower-case
// letters and digits.
func ValidLane(lane string) error {
	if lane == "" || strings.Trim(lane, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return fmt.Errorf("lane %q is not a word of lower-case letters and digits", lane)
	}
	return nil
}
