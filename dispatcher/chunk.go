package dispatcher

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// chunkBytes is the approximate limit of the specs and items of a chunk, in bytes. The
// items of one process on one host may exceed it, because they stay together. A single
// spec may not.
const chunkBytes = 512 << 10

// maxChunks is the maximum number of chunks of a task. A task has many chunks only if
// every host is in its own cloud area. All chunks must be queued within
// Timeouts.Accept, otherwise no attempt to accept the task succeeds.
const maxChunks = 32 << 10

// maxPlanBytes limits the specs and items of all chunks together, in bytes. A small
// request with big specs exceeds it if every host needs its own chunks.
const maxPlanBytes = 512 << 20

// itemBytes is the approximate size of an item without its spec and labels.
const itemBytes = 64

// plan is a submission cut into chunks.
type plan struct {
	chunks  []procfleet.Chunk
	actions []procfleet.Action // distinct, in request order
	items   int
	// definitions are the specs that acceptance registers.
	definitions []catalog.Definition
	// longest is the time that the busiest host may need for all its items.
	longest time.Duration
	// rollout is nil without a policy. Its UnitTimeout is not set.
	rollout *procfleet.RolloutPlan
	// zones are the zones of the rollout, by their numbers from 1.
	zones []v1.ZoneSize
	// refusal is the error of a rollout whose order names a group without hosts.
	refusal error
}

// place is a destination whose items are executed in order: one host, or one target
// that resolved to no host.
type place struct {
	host  procfleet.Host
	label string // set only without a host
	agent string // set only without a host
}

// hostWork holds the items of one request for one place, in request order.
type hostWork struct {
	place place
	items []plannedItem
	bare  int // number, from 1, of the last operation that names the host without label and agent id
}

type plannedItem struct {
	procfleet.Item
	key       string // key of the process
	registers bool   // acceptance registers the item's spec
}

// cut divides operations into chunks. Each chunk belongs to one cloud area. All items
// of one process on one host are in the same chunk, in request order, and so are all
// items of one host if they fit. If one operation names a host twice in the same way,
// the host counts once. With a policy, each chunk belongs to one stage of the rollout.
func cut(operations []procfleet.Operation, g *groupedPolicy) (*plan, error) {
	specs, err := distinctSpecs(operations)
	if err != nil {
		return nil, err
	}
	p := &plan{}
	c := cutter{specs: specs, open: make(map[area]*openChunk)}
	works := c.byHost(operations)
	for i := range works {
		p.longest = max(p.longest, c.budget(&works[i]))
	}
	if g != nil && len(works) > 0 {
		sizes := g.sort(works)
		p.refusal = g.missing(sizes)
		p.rollout, p.zones, err = c.addStages(works, g, sizes)
	} else {
		c.addHosts(works)
	}
	if err != nil {
		return nil, err
	}
	if c.bytesInAll > maxPlanBytes {
		return nil, tooLarge("the process specs are too big for so many processes on hosts: more than %d MiB for all of them; divide the request", maxPlanBytes>>20)
	}
	if len(c.chunks) > maxChunks {
		return nil, tooLarge("the hosts are in %d cloud areas, at most %d are allowed in one request; divide the request by areas", len(c.open), maxChunks)
	}
	for _, chunk := range c.chunks {
		chunk.First = p.items
		p.items += len(chunk.Items)
		p.chunks = append(p.chunks, *chunk)
	}
	p.actions = distinctActions(operations)
	if slices.ContainsFunc(operations, registers) {
		p.definitions = definitions(specs, works)
	}
	return p, nil
}

// specTable holds each distinct spec once.
type specTable struct {
	specs []*procfleet.ProcessSpec
	sizes []int
	of    []int // operation index → spec index
}

func distinctSpecs(operations []procfleet.Operation) (*specTable, error) {
	t := &specTable{of: make([]int, len(operations))}
	seen := make(map[string]int, len(operations))
	for i := range operations {
		text, err := json.Marshal(&operations[i].Process)
		if err != nil {
			return nil, fmt.Errorf("encode the process spec of operation %d: %w", i, err)
		}
		if len(text) > chunkBytes {
			return nil, tooLarge("the process spec of operation %d is %d bytes long, at most %d are allowed", i, len(text), chunkBytes)
		}
		at, ok := seen[string(text)]
		if !ok {
			at = len(t.specs)
			seen[string(text)] = at
			t.specs = append(t.specs, &operations[i].Process)
			t.sizes = append(t.sizes, len(text))
		}
		t.of[i] = at
	}
	return t, nil
}

func distinctActions(operations []procfleet.Operation) []procfleet.Action {
	var actions []procfleet.Action
	for i := range operations {
		if a := operations[i].Action; !slices.Contains(actions, a) {
			actions = append(actions, a)
		}
	}
	return actions
}

// area is the destination of a chunk. Items without a host have no destination, so they
// are in separate chunks of cloud area 0.
type area struct {
	cloud   procfleet.CloudArea
	nowhere bool
}

// cutter fills one open chunk per area.
type cutter struct {
	specs  *specTable
	chunks []*procfleet.Chunk // in creation order
	open   map[area]*openChunk
	zone   int // zone of the chunks to create
	// bytesInAll is the approximate size of all chunks together.
	bytesInAll int
}

// openChunk is a chunk that is not full.
type openChunk struct {
	*procfleet.Chunk
	size  int         // bytes
	specs map[int]int // spec index → index in the chunk
}

// byHost groups items by place. The places are in the order in which the request first
// names them.
func (c *cutter) byHost(operations []procfleet.Operation) []hostWork {
	most := 0
	for i := range operations {
		most = max(most, len(operations[i].Targets))
	}
	works := make([]hostWork, 0, most)
	at := make(map[place]int, most)
	named := make(map[procfleet.Target]struct{})
	for i := range operations {
		o := &operations[i]
		key, fixed := o.Process.Key(), registers(*o)
		clear(named)
		for _, t := range o.Targets {
			where := place{host: t.Host}
			if t.Host.IsZero() {
				where.label, where.agent = t.Label, t.AgentID
			}
			n, known := at[where]
			if !known {
				n = len(works)
				at[where] = n
				works = append(works, hostWork{place: where})
			}
			if works[n].namedAgain(i, t, named) {
				continue
			}
			works[n].items = append(works[n].items, plannedItem{
				Item: procfleet.Item{Action: o.Action, Spec: c.specs.of[i], Target: t}, key: key, registers: fixed,
			})
		}
	}
	return works
}

// namedAgain reports whether an operation names target t a second time, and records t.
// The map holds only targets with a label or an agent id: with all targets it would be
// as large as the request.
func (w *hostWork) namedAgain(operation int, t procfleet.Target, named map[procfleet.Target]struct{}) (again bool) {
	if t == (procfleet.Target{Host: t.Host}) {
		again = w.bare == operation+1
		w.bare = operation + 1
		return again
	}
	_, again = named[t]
	named[t] = struct{}{}
	return again
}

func (c *cutter) addHosts(works []hostWork) {
	for i := range works {
		c.addHost(&works[i])
	}
}

// addHost adds the items of one place to one chunk. If they are too many or too big, it
// adds the items of each process separately.
func (c *cutter) addHost(w *hostWork) {
	if len(w.items) <= procfleet.ChunkItems && c.bytes(w.items, nil) <= chunkBytes {
		c.add(w.place, w.items)
		return
	}
	var keys []string
	byKey := make(map[string][]plannedItem)
	for _, it := range w.items {
		if byKey[it.key] == nil {
			keys = append(keys, it.key)
		}
		byKey[it.key] = append(byKey[it.key], it)
	}
	for _, key := range keys {
		c.add(w.place, byKey[key])
	}
}

// add adds items that must stay together to the open chunk of their area. If they do
// not fit, it opens a new chunk.
func (c *cutter) add(where place, items []plannedItem) {
	a := area{cloud: where.host.Cloud, nowhere: where.host.IsZero()}
	chunk := c.open[a]
	if chunk == nil || len(chunk.Items)+len(items) > procfleet.ChunkItems ||
		chunk.size+c.bytes(items, chunk.specs) > chunkBytes {
		chunk = &openChunk{Chunk: &procfleet.Chunk{Cloud: a.cloud, Zone: c.zone}, specs: make(map[int]int)}
		c.chunks = append(c.chunks, chunk.Chunk)
		c.open[a] = chunk
	}
	size := c.bytes(items, chunk.specs)
	chunk.size += size
	c.bytesInAll += size
	for _, it := range items {
		local, ok := chunk.specs[it.Spec]
		if !ok {
			local = len(chunk.Specs)
			chunk.specs[it.Spec] = local
			chunk.Specs = append(chunk.Specs, *c.specs.specs[it.Spec])
		}
		item := it.Item
		item.Spec = local
		chunk.Items = append(chunk.Items, item)
	}
}

// bytes returns the size that items would add to a chunk that already has the specs in
// there.
func (c *cutter) bytes(items []plannedItem, there map[int]int) int {
	n := 0
	var counted map[int]bool
	for i, it := range items {
		n += itemBytes + len(it.Target.Label) + len(it.Target.AgentID)
		if _, ok := there[it.Spec]; ok || counted[it.Spec] {
			continue
		}
		n += c.specs.sizes[it.Spec]
		if counted == nil && i+1 < len(items) {
			counted = make(map[int]bool)
		}
		if counted != nil {
			counted[it.Spec] = true
		}
	}
	return n
}

// hostCommands is the number of commands that an agent runs at the same time.
const hostCommands = 64

// budget returns the maximum time that one responsive host needs for its items. Operations
// on one process run one after the other; processes run in parallel, at most hostCommands
// at the same time. A schedule that never idles needs at most its longest chain plus the
// total divided by hostCommands.
func (c *cutter) budget(w *hostWork) time.Duration {
	if len(w.items) == 1 {
		return c.itemBudget(&w.items[0])
	}
	var longest, all time.Duration
	chains := make(map[string]time.Duration, len(w.items))
	for i := range w.items {
		it := &w.items[i]
		own := c.itemBudget(it)
		chains[it.key] += own
		all += own
		longest = max(longest, chains[it.key])
	}
	if len(chains) <= hostCommands {
		return longest
	}
	return longest + all/hostCommands
}

func (c *cutter) itemBudget(it *plannedItem) time.Duration {
	return c.specs.specs[it.Spec].Budget(it.Action)
}

// timeout returns the time limit of a task: the caller's timeout, or else the budget of
// the busiest host plus slack, at most [procfleet.MaxTimeout].
func timeout(wanted, longest, slack time.Duration) time.Duration {
	if wanted != 0 {
		return wanted
	}
	return min(longest+slack, procfleet.MaxTimeout)
}
