package agentproto

// Cancel requests that items of a task do not run. It is a request to
// [AgentSubject]; the reply is a [CancelReply]. The agent decides about each item
// in its journal before it replies, so that the decision survives a crash. A
// repeated request has the same outcome, except that a begun item may be over.
type Cancel struct {
	Header
	Task string `json:"task"`
	Lane string `json:"lane"` // lane of the results, as in [Command]
	Host string `json:"host"` // as in [Command]
	// Instance is as in [Command].
	Instance string `json:"instance,omitempty"`
	// Interrupt terminates the commands of items that have begun: SIGTERM, then
	// SIGKILL after the stop grace of their spec. Without it they end by themselves.
	Interrupt bool         `json:"interrupt,omitzero"`
	Items     []CancelItem `json:"items"`
}

// CancelItem is one item of a [Cancel].
type CancelItem struct {
	Item int `json:"item"`
	// Action, Key and Fence are those of the [CommandItem] and its [Spec]: the agent
	// may not know the item.
	Action string `json:"action"`
	Key    string `json:"key"`
	Fence  int64  `json:"fence"`
}

// CancelReply is the reply to a [Cancel]. It has either one entry per item of the
// request, or Refused and no items: then the agent decided nothing.
type CancelReply struct {
	Header
	Instance    string      `json:"instance"`
	Incarnation string      `json:"incarnation"`
	Refused     string      `json:"refused,omitempty"` // values as in [Reply.Refused]
	Message     string      `json:"message,omitempty"`
	Items       CancelItems `json:"items,omitempty"`
}

// CancelDecision is the decision of an agent about one item. The result of a dropped
// or tombstoned item has [ReasonCancelled]: no command of the item has run or will run
// on this instance. The result of a dropped item is also sent in [Results].
type CancelDecision struct {
	Item     int    `json:"item"`
	Decision string `json:"decision"`
	// Result is the result of the item; nil if the item has begun.
	Result *Result `json:"result,omitempty"`
}

// Values of [CancelDecision.Decision].
const (
	DecisionDropped    = "dropped"    // accepted, not begun: it will not run
	DecisionTombstoned = "tombstoned" // unknown to the agent: a later command of it is refused
	DecisionBegun      = "begun"      // it has begun and has no result yet
	DecisionOver       = "over"       // it had a result before
)
