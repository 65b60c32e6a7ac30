package worker

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
)

// Bounds of one command; what is more for a host follows in the next.
const (
	maxCommandItems = 256
	maxCommandSpecs = 512 << 10 // bytes of encoded specs
)

// commands makes the commands of one chunk. Each spec is encoded once,
// however many hosts it goes to, and so is what all commands begin with.
type commands struct {
	prefix []byte // the message up to its id
	task   []byte // task and lane
	fence  int64
	first  int
	items  []procfleet.Item
	specs  []json.RawMessage
}

func newCommands(task *procfleet.Task, chunk *procfleet.Chunk) (*commands, error) {
	c := &commands{
		fence: int64(task.Number), first: chunk.First,
		items: chunk.Items, specs: make([]json.RawMessage, len(chunk.Specs)),
	}
	c.prefix = appendText([]byte(`{"type":`), agentproto.TypeCommand)
	c.prefix = append(c.prefix, `,"id":`...)
	c.task = appendText([]byte(`,"task":`), string(task.ID))
	c.task = append(c.task, `,"lane":`...)
	c.task = appendText(c.task, bus.ResultLane(task.Lane))
	for i := range chunk.Specs {
		var err error
		if c.specs[i], err = encodeSpec(&chunk.Specs[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// fit returns how many of the items, in order, one command takes; at least one.
func (c *commands) fit(items []int) int {
	if len(items) == 1 {
		return 1
	}
	size, seen := 0, map[int]bool{}
	for n, i := range items {
		if spec := c.items[i].Spec; !seen[spec] {
			seen[spec] = true
			size += len(c.specs[spec])
		}
		if n > 0 && (n == maxCommandItems || size > maxCommandSpecs) {
			return n
		}
	}
	return len(items)
}

// encode writes the [agentproto.Command] for items of one host. It writes the
// JSON itself: thousands of commands differ in a few words only, and going
// through the struct made encoding the largest part of delivering.
func (c *commands) encode(h *hostAsk, items []int, id string, now, acceptBefore time.Time) []byte {
	b := make([]byte, 0, 512+64*len(items)+len(c.specs[c.items[items[0]].Spec]))
	b = append(b, c.prefix...)
	b = appendText(b, id)
	b = appendMoment(append(b, `,"sent":`...), now)
	b = append(b, c.task...)
	b = appendText(append(b, `,"host":`...), h.name)
	if h.instance != "" {
		b = appendText(append(b, `,"instance":`...), h.instance)
	}
	b = appendMoment(append(b, `,"accept_before":`...), acceptBefore)
	b, specs := c.appendItems(append(b, `,"items":[`...), items)
	b = append(b, `],"specs":[`...)
	for n, spec := range specs {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, c.specs[spec]...)
	}
	return append(b, `]}`...)
}

// appendItems returns also the specs that the items name, in the order of the
// positions they name them by.
func (c *commands) appendItems(b []byte, items []int) (_ []byte, specs []int) {
	position := make(map[int]int, 1)
	for n, i := range items {
		spec := c.items[i].Spec
		at, known := position[spec]
		if !known {
			at = len(specs)
			position[spec] = at
			specs = append(specs, spec)
		}
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"item":`...), int64(c.first+i), 10)
		b = appendText(append(b, `,"action":`...), string(c.items[i].Action))
		b = strconv.AppendInt(append(b, `,"spec":`...), int64(at), 10)
		b = strconv.AppendInt(append(b, `,"fence":`...), c.fence, 10)
		b = append(b, '}')
	}
	return b, specs
}

func appendMoment(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano)
	return append(b, '"')
}

// appendText writes a JSON string. Ours need no escaping, foreign ones may.
func appendText(b []byte, text string) []byte {
	for i := range len(text) {
		if !plain(text[i]) {
			quoted, _ := json.Marshal(text) // a string always can be
			return append(b, quoted...)
		}
	}
	b = append(append(b, '"'), text...)
	return append(b, '"')
}

// plain reports whether encoding/json writes a byte of a string as it is.
func plain(c byte) bool {
	switch c {
	case '"', '\\', '<', '>', '&':
		return false
	}
	return ' ' <= c && c < utf8.RuneSelf
}

// keepOnly lets go of the specs that none of the given hosts needs.
func (c *commands) keepOnly(hosts []*hostAsk) {
	specs := make([]json.RawMessage, len(c.specs))
	for _, h := range hosts {
		for _, i := range h.todo {
			specs[c.items[i].Spec] = c.specs[c.items[i].Spec]
		}
	}
	c.specs = specs
}
