package pack

import (
	"encoding/json"
	"fmt"

	"github.com/procfleet/procfleet"
)

// previous has each different spec once.
type previous struct {
	Specs []json.RawMessage `json:"s"`
	Items []int             `json:"i"` // index in Specs for each item, -1 without one
}

// PreviousSpecs packs the specs of consecutive items; nil is an item without one.
func PreviousSpecs(specs []*procfleet.ProcessSpec) ([]byte, error) {
	p := previous{Items: make([]int, len(specs))}
	known := map[string]int{}
	for i, spec := range specs {
		if p.Items[i] = -1; spec == nil {
			continue
		}
		text, err := json.Marshal(spec)
		if err != nil {
			return nil, fmt.Errorf("pack a previous spec: %w", err)
		}
		at, found := known[string(text)]
		if !found {
			at = len(p.Specs)
			known[string(text)] = at
			p.Specs = append(p.Specs, text)
		}
		p.Items[i] = at
	}
	return json.Marshal(p)
}

// ReadPreviousSpecs unpacks specs. Items with equal specs share one.
func ReadPreviousSpecs(data []byte) ([]*procfleet.ProcessSpec, error) {
	var p previous
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("previous specs: %w", err)
	}
	read := make([]*procfleet.ProcessSpec, len(p.Specs))
	for i, text := range p.Specs {
		read[i] = new(procfleet.ProcessSpec)
		if err := json.Unmarshal(text, read[i]); err != nil {
			return nil, fmt.Errorf("previous spec: %w", err)
		}
	}
	specs := make([]*procfleet.ProcessSpec, len(p.Items))
	for i, at := range p.Items {
		if at >= len(read) {
			return nil, fmt.Errorf("previous specs: item %d has spec %d of %d", i, at, len(read))
		}
		if at >= 0 {
			specs[i] = read[at]
		}
	}
	return specs, nil
}
