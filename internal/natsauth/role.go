package natsauth

import "github.com/nats-io/jwt/v2"

// Role is what a user is for. It decides what the user may do.
type Role string

// The roles.
const (
	// Agent is the agent of one host.
	Agent Role = "agent"
	// Server is dispatchers and workers, and programs that stand for many agents.
	Server Role = "server"
	// Producer is a program that submits operations on NATS.
	Producer Role = "producer"
	// Leaf is the NATS server of one cloud area that is a network of its own. Brokers
	// accept acknowledgements of JetStream from it whatever its rights are.
	Leaf Role = "leaf"
	// Monitor asks brokers how they are. It is of the system account, sees no
	// message of the fleet and changes nothing.
	Monitor Role = "monitor"
	// Push sends a new account to brokers. They accept an older one as well, so
	// this role can undo revocations.
	Push Role = "push"
)

// ofSystem reports whether a role's users are of the system account, which
// knows no revocations.
func (r Role) ofSystem() bool { return r == Monitor || r == Push }

// scoped are the roles whose rights are in an account.
var scoped = []Role{Agent, Server, Producer, Leaf}

// ofFleet are those whose users are in the account of the fleet.
var ofFleet = []Role{Agent, Server, Leaf}

// Tags of users, from which brokers make the subjects of their rights.
const (
	tagCloud = "cloud"
	tagHost  = "host" // as in subjects: 10-0-0-1
)

// eachUser stands for the public key of the user in the rights of a role; the
// broker replaces it.
const eachUser = "{{subject()}}"

// Inboxes that are no agent's; those are agentproto.AgentInbox.
const (
	// ServerInbox is the inbox prefix of all dispatchers and workers. They trust
	// each other, and keep it when their credentials are replaced at run time.
	ServerInbox = "_INBOX.server"
	// producerInboxes is above the inbox prefix of each producer.
	producerInboxes = "_INBOX.producer"
	systemInboxes   = "_INBOX.system"
)

// InboxPrefix returns the first tokens of the subjects on which a user receives
// replies: the only inbox to which it may subscribe. Agents have that of
// agentproto.AgentInbox.
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

// rights of a role. An agent may publish nowhere where another agent listens, and
// agents and leaf nodes to no subject of a stream: JetStream would acknowledge the
// message on any subject that they name.
// An agent needs no right to reply to any request ("allow_responses"), with
// which it could publish anywhere: it would publish to itself with the target
// as reply subject.
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
			// whether another agent of this host is there, and the answer
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
			publish = append(publish, "$SYS.REQ.ACCOUNT.*."+what) // CLAIMS.UPDATE is there as well
		}
		return publish, []string{"$SYS.>", inbox}
	case Push:
		return []string{"$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE"}, []string{inbox}
	}
	return nil, nil
}

// limits of one connection of a role: subscriptions, and bytes of a message that
// it publishes. The broker's own max_payload counts as well.
func limits(role Role) (subscriptions, payload int64) {
	switch role {
	case Agent: // its subject, the settings, its inbox; results are up to 512 KiB
		return 32, 1 << 20
	case Producer: // finished tasks and inboxes
		return 256, 8 << 20
	case Server: // simulate has one for each of its agents
		return 1 << 18, 8 << 20
	case Leaf: // one for each agent of its area
		return 1 << 20, 8 << 20
	case Push: // the account with its revocations
		return 16, maxAccount
	default:
		return 256, 64 << 10
	}
}

// connections are the ways in which a user of a role may connect.
func connections(role Role) []string {
	if role == Leaf {
		return []string{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS}
	}
	return []string{jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess}
}

// permissions are the rights of a role as NATS writes them. The user is a
// public key, or the template that stands for it.
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
