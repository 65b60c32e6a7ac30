package pack

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/packing"
)

// Spec packs a spec. Equal specs have equal bytes. ReadSpec returns the labels byte for
// byte as they are.
func Spec(s *procfleet.ProcessSpec) ([]byte, error) {
	raw, err := exactJSON(s)
	if err != nil {
		return nil, fmt.Errorf("pack: spec of %s: %w", s.Key(), err)
	}
	return raw, nil
}

// ReadSpec parses the output of [Spec].
func ReadSpec(data []byte) (procfleet.ProcessSpec, error) {
	var s procfleet.ProcessSpec
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%w: %w", packing.ErrDamaged, err)
	}
	return s, nil
}

// groups is [catalog.HostGroups] without its host and namespace.
type groups struct {
	Name   string                     `json:"name,omitempty"`
	Labels map[string]json.RawMessage `json:"labels,omitempty"`
	Groups []catalog.Group            `json:"groups"`
}

// Groups packs groups without their host and namespace. ReadGroups returns the labels
// byte for byte as they are.
func Groups(g *catalog.HostGroups) ([]byte, error) {
	raw, err := exactJSON(groups{Name: g.Name, Labels: g.Labels, Groups: g.Groups})
	if err != nil {
		return nil, fmt.Errorf("pack: groups of %s on %s: %w", g.Namespace, g.Host, err)
	}
	return raw, nil
}

// ReadGroups parses the output of [Groups].
func ReadGroups(h procfleet.Host, namespace string, data []byte) (catalog.HostGroups, error) {
	var g groups
	if err := json.Unmarshal(data, &g); err != nil {
		return catalog.HostGroups{}, fmt.Errorf("%w: %w", packing.ErrDamaged, err)
	}
	return catalog.HostGroups{Host: h, Namespace: namespace, Name: g.Name, Labels: g.Labels, Groups: g.Groups}, nil
}

// exactJSON encodes v as JSON without changing raw values. [json.Marshal] would escape
// <, > and & in them.
func exactJSON(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}
