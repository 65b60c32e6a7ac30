package deliver

import (
	"encoding/json"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/worker/agentlink"
)

// Limits of one command. The remaining items of a host follow in further commands.
const (
	maxCommandItems = 256
	maxCommandSpecs = 512 << 10 // bytes of all encoded specs
)

// commands encodes the commands of one chunk. Each spec is encoded only once.
type commands struct {
	task  string
	lane  string
	fence int64
	first int
	items []procfleet.Item
	specs []json.RawMessage
	// deadline of the items; agents start none later.
	deadline time.Time
}

func newCommands(begun *taskstore.Begun) (*commands, error) {
	task, chunk := &begun.Task, &begun.Chunk
	c := &commands{
		task: string(task.ID), lane: bus.ResultLane(task.Lane), fence: int64(task.Number),
		first: chunk.First, items: chunk.Items, specs: make([]json.RawMessage, len(chunk.Specs)),
		deadline: begun.Deadline,
	}
	for i := range chunk.Specs {
		var err error
		if c.specs[i], err = agentlink.EncodeSpec(&chunk.Specs[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// fit returns how many of the items, in order, fit into one command; at least one.
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

// encode returns the encoded command for items of one host.
func (c *commands) encode(h *hostRequest, items []int, id string, now, acceptBefore time.Time) ([]byte, error) {
	command := agentproto.Command{
		Header: agentproto.Header{Type: agentproto.TypeCommand, ID: id, Sent: now},
		Task:   c.task, Lane: c.lane, Host: h.name, Instance: h.instance, Incarnation: h.incarnation, AcceptBefore: acceptBefore, NotAfter: c.deadline,
		Items: make([]agentproto.CommandItem, len(items)),
	}
	position := make(map[int]int, 1) // index in the chunk's specs → index in the command's
	for n, i := range items {
		spec := c.items[i].Spec
		at, known := position[spec]
		if !known {
			at = len(command.Specs)
			position[spec] = at
			command.Specs = append(command.Specs, c.specs[spec])
		}
		command.Items[n] = agentproto.CommandItem{
			Item: c.first + i, Action: string(c.items[i].Action), Spec: at, Fence: c.fence,
		}
	}
	return agentproto.EncodeCommand(&command)
}

// freeSpecs frees the specs that none of the hosts needs; hosts may have nil elements.
func (c *commands) freeSpecs(hosts []*hostRequest) {
	specs := make([]json.RawMessage, len(c.specs))
	for _, h := range hosts {
		if h == nil {
			continue
		}
		for _, i := range h.todo {
			specs[c.items[i].Spec] = c.specs[c.items[i].Spec]
		}
	}
	c.specs = specs
}
