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
	// Leaf is the NATS server of one cloud area that is a network of its own.
	Leaf Role = "leaf"
	// Monitor asks brokers how they are. It is of the system account, sees no
	// message of the fleet and changes nothing.
	Monitor Role = "monitor"
	// Push tells brokers of a new account. They take an older one as well, and so
	// whoever may do this can undo revocations.
	Push Role = "push"
)

// ofSystem reports whether a role's users are of the system account, which
// knows no revocations.
func (r Role) ofSystem() bool { return r == Monitor || r == Push }

// scoped are the roles whose rights are in the account.
var scoped = []Role{Agent, Server, Producer, Leaf}

// Tags of users, from which brokers make the subjects of their rights.
const (
	tagCloud = "cloud"
	tagHost  = "host" // as in subjects: 10-0-0-1
)

// rights of a role. An agent may publish nowhere where another agent listens.
// It needs no right to answer whoever asks it ("allow_responses"), with which
// it could send anything anywhere: it would publish to itself and name the
// target as the subject for the answer.
func rights(role Role) (publish, subscribe []string) {
	const cloud, host = "{{tag(" + tagCloud + ")}}", "{{tag(" + tagHost + ")}}"
	const self = cloud + "." + host
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
		return []string{"procfleet.>", "$JS.API.>", "$JS.ACK.>", "_INBOX.>"}, []string{"procfleet.>", "_INBOX.>"}
	case Producer:
		return []string{"procfleet.submit", "$JS.API.INFO"}, []string{"procfleet.task.finished", "_INBOX.>"}
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
		return publish, []string{"$SYS.>", "_INBOX.>"}
	case Push:
		return []string{"$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE"}, []string{"_INBOX.>"}
	}
	return nil, nil
}

// connections are the ways in which a user of a role may connect.
func connections(role Role) []string {
	if role == Leaf {
		return []string{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS}
	}
	return []string{jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket, jwt.ConnectionTypeInProcess}
}

// permissions are the rights of a role as NATS writes them.
func permissions(role Role) jwt.UserPermissionLimits {
	publish, subscribe := rights(role)
	p := jwt.NewUserScope().Template
	p.Pub.Allow.Add(publish...)
	p.Sub.Allow.Add(subscribe...)
	p.Subs, p.Data, p.Payload = jwt.NoLimit, jwt.NoLimit, jwt.NoLimit
	p.AllowedConnectionTypes.Add(connections(role)...)
	return p
}
