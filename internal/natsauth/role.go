package natsauth

import "github.com/nats-io/jwt/v2"

// Role is the purpose of a NATS user; it determines the user's permissions.
type Role string

// The roles of NATS users.
const (
	// Agent is for the agent of one host.
	Agent Role = "agent"
	// Server is for dispatchers and workers, and for simulations of many agents.
	Server Role = "server"
	// Producer is for programs that submit operations by NATS.
	Producer Role = "producer"
	// Leaf is for the NATS server in a cloud area with a separate network. Brokers
	// accept JetStream acknowledgements from a leaf node regardless of its
	// permissions.
	Leaf Role = "leaf"
	// Monitor is for querying the state of brokers. It is in the system account,
	// receives no message of the fleet and changes nothing.
	Monitor Role = "monitor"
	// Push is for sending new account tokens to brokers. Brokers also accept an
	// older token, so this role can undo revocations.
	Push Role = "push"
)

// ofSystem reports whether users of the role are in the system account, which
// supports no revocations.
func (r Role) ofSystem() bool { return r == Monitor || r == Push }

// scoped lists the roles whose permissions are in an account.
var scoped = []Role{Agent, Server, Producer, Leaf}

// ofFleet lists the roles whose users are in the fleet's account.
var ofFleet = []Role{Agent, Server, Leaf}

// Tags of users, which brokers substitute in the subjects of permissions.
const (
	tagCloud = "cloud"
	tagHost  = "host" // host token in subjects, such as 10-0-0-1
)

// eachUser is the template for a user's public key in the permissions of a role;
// the broker substitutes it.
const eachUser = "{{subject()}}"

// Inbox prefixes of all roles except agents, which use agentproto.AgentInbox.
const (
	// ServerInbox is the inbox prefix of all dispatchers and workers. It is shared,
	// because servers trust each other and their user may change at run time.
	ServerInbox = "_INBOX.server"
	// producerInboxes precedes the user in the inbox prefix of each producer.
	producerInboxes = "_INBOX.producer"
	systemInboxes   = "_INBOX.system"
)

// InboxPrefix returns the prefix of the subjects on which a user receives replies,
// the only inbox to which the user may subscribe. Agents use agentproto.AgentInbox
// instead.
func InboxPrefix(role Role, user string) string {
	switch role {
	case Producer:
		return producerInboxes + "." + user
	case Monitor, Push:
		return systemInboxes + "." + user
	default:
		return ServerInbox
	}
}

// rights returns the subjects that a role may publish and subscribe to. An agent
// may not publish to other agents, and neither agents nor leaf nodes to a subject
// of a stream: JetStream would publish the acknowledgement to any reply subject
// that they name. An agent has no permission to reply to every request
// ("allow_responses"): with a request to itself, it could reply to any subject.
func rights(role Role, user string) (publish, subscribe []string) {
	const cloud, host = "{{tag(" + tagCloud + ")}}", "{{tag(" + tagHost + ")}}"
	const self = cloud + "." + host
	inbox := InboxPrefix(role, user) + ".>"
	switch role {
	case Agent:
		publish = []string{
			"procfleet.presence." + cloud, "procfleet.processes." + cloud, "procfleet.settings." + cloud,
			"procfleet.event." + cloud, "procfleet.result.*." + cloud,
			"procfleet.answer." + self + ".>",
			// the query for another agent of this host, and the reply
			"procfleet.agent." + self, "_INBOX." + self + ".>",
		}
		return publish, []string{"procfleet.agent." + self, "procfleet.settingschanged", "_INBOX." + self + ".>"}
	case Server:
		return []string{"procfleet.>", "$JS.API.>", "$JS.ACK.>", "_INBOX.>"}, []string{"procfleet.>", inbox}
	case Producer:
		return []string{subjectSubmit}, []string{subjectFinished, inbox}
	case Leaf:
		publish = []string{
			"procfleet.presence." + cloud, "procfleet.processes." + cloud, "procfleet.settings." + cloud,
			"procfleet.event." + cloud, "procfleet.result.*." + cloud, "procfleet.answer." + cloud + ".>",
		}
		return publish, []string{"procfleet.agent." + cloud + ".>", "procfleet.settingschanged", "_INBOX." + cloud + ".>"}
	case Monitor:
		publish = []string{"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.>"}
		for _, what := range []string{"CONNS", "CONNZ", "INFO", "JSZ", "LEAFZ", "STATZ", "SUBSZ"} {
			publish = append(publish, "$SYS.REQ.ACCOUNT.*."+what) // not ".*", which includes CLAIMS.UPDATE
		}
		return publish, []string{"$SYS.>", inbox}
	case Push:
		return []string{"$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE"}, []string{inbox}
	}
	return nil, nil
}

// limits returns the limits of one connection of a role: the number of subscriptions,
// and the size of a published message in bytes. The broker's max_payload also
// applies.
func limits(role Role) (subscriptions, payload int64) {
	switch role {
	case Agent: // host subject, settings, inbox; results have up to 512 KiB
		return 32, 1 << 20
	case Producer: // finished tasks and replies
		return 256, 8 << 20
	case Server: // procfleet-bench simulate subscribes for each of its agents
		return 1 << 18, 8 << 20
	case Leaf: // one subscription for each agent of the cloud area
		return 1 << 20, 8 << 20
	case Push: // an account token with its revocations
		return 16, maxAccount
	default:
		return 256, 64 << 10
	}
}

func connections(role Role) []string {
	if role == Leaf {
		return []string{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS}
	}
	return []string{jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess}
}

// permissions returns the permissions of a role in the format of NATS. user is a
// public key, or eachUser.
func permissions(role Role, user string) jwt.UserPermissionLimits {
	publish, subscribe := rights(role, user)
	p := jwt.NewUserScope().Template
	p.Pub.Allow.Add(publish...)
	p.Sub.Allow.Add(subscribe...)
	p.Data = jwt.NoLimit
	p.Subs, p.Payload = limits(role)
	p.AllowedConnectionTypes.Add(connections(role)...)
	return p
}
