package pack

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/packing"
)

// The layout of a packed chunk:
//
//	format | fields: specs as JSON, cloud area, first, n | n × end of item | items
//
// With the ends of the items, one item can be read without the others: a page of
// results contains a few items of many chunks.

// Chunk packs a chunk.
func Chunk(c *procfleet.Chunk) ([]byte, error) {
	specs, err := json.Marshal(c.Specs)
	if err != nil {
		return nil, fmt.Errorf("pack: specs of a chunk: %w", err)
	}
	head := packing.Writing(len(specs) + 16)
	raw, cloud, first, n := string(specs), c.Cloud, c.First, len(c.Items)
	chunkFields(head, &raw, &cloud, &first, &n)
	ends := make([]byte, 0, 4*len(c.Items))
	items := packing.Fields{}
	for i := range c.Items {
		itemFields(&items, &c.Items[i])
		ends = binary.LittleEndian.AppendUint32(ends, uint32(len(items.Out)))
	}
	return slices.Concat(head.Out, ends, items.Out), nil
}

func chunkFields(f *packing.Fields, specs *string, cloud *procfleet.CloudArea, first, n *int) {
	packing.Text(f, specs)
	packing.Num(f, cloud)
	packing.Num(f, first)
	packing.Num(f, n)
}

func itemFields(f *packing.Fields, it *procfleet.Item) {
	packing.Text(f, &it.Action)
	packing.Num(f, &it.Spec)
	f.Host(&it.Target.Host)
	packing.Text(f, &it.Target.AgentID)
	packing.Text(f, &it.Target.Label)
}

// ReadChunk reads what [Chunk] packed.
func ReadChunk(data string) (procfleet.Chunk, error) {
	v, err := OpenChunk(data)
	if err != nil {
		return procfleet.Chunk{}, err
	}
	c := procfleet.Chunk{Cloud: v.Cloud, First: v.First, Specs: v.Specs, Items: make([]procfleet.Item, v.Len())}
	for i := range c.Items {
		if c.Items[i], err = v.Item(i); err != nil {
			return procfleet.Chunk{}, err
		}
	}
	return c, nil
}

// View reads single items of a packed chunk. All items that it returns share the specs.
type View struct {
	Cloud procfleet.CloudArea
	First int
	Specs []procfleet.ProcessSpec

	n     int
	ends  string
	items string
}

// OpenChunk opens a packed chunk. The items read from it share the memory of data.
func OpenChunk(data string) (*View, error) {
	f, err := packing.Reading(data)
	if err != nil {
		return nil, err
	}
	var v View
	var specs string
	chunkFields(f, &specs, &v.Cloud, &v.First, &v.n)
	if f.Err != nil || v.First < 0 || v.n < 0 || v.n > len(f.In)/4 {
		return nil, packing.ErrDamaged
	}
	if err := json.Unmarshal([]byte(specs), &v.Specs); err != nil {
		return nil, fmt.Errorf("pack: specs of a chunk: %w", err)
	}
	v.ends, v.items = f.In[:4*v.n], f.In[4*v.n:]
	return &v, nil
}

// Len returns the number of items.
func (v *View) Len() int { return v.n }

// Item reads the i-th item of the chunk. It returns an error if there is none: the
// directory of chunks is stored separately and may not match.
func (v *View) Item(i int) (procfleet.Item, error) {
	if i < 0 || i >= v.n {
		return procfleet.Item{}, packing.ErrDamaged
	}
	begin, end := uint32(0), v.end(i)
	if i > 0 {
		begin = v.end(i - 1)
	}
	if begin > end || uint64(end) > uint64(len(v.items)) {
		return procfleet.Item{}, packing.ErrDamaged
	}
	f := &packing.Fields{Reading: true, In: v.items[begin:end]}
	var it procfleet.Item
	itemFields(f, &it)
	if it.Spec < 0 || it.Spec >= len(v.Specs) {
		return procfleet.Item{}, packing.ErrDamaged
	}
	return it, f.Err
}

func (v *View) end(i int) uint32 {
	e := v.ends[4*i:]
	return uint32(e[0]) | uint32(e[1])<<8 | uint32(e[2])<<16 | uint32(e[3])<<24
}
