package pack

import "github.com/procfleet/procfleet/catalog"

const topologyVersion = 1

// Topology packs a topology without its version: 6 bytes for a host with an
// IPv4 address.
func Topology(t *catalog.Topology) []byte {
	f := fields{out: []byte{topologyVersion}}
	f.topology(t)
	return f.out
}

// ReadTopology reads what [Topology] packed; its names share the memory of
// data.
func ReadTopology(version int64, data string) (*catalog.Topology, error) {
	if data == "" || data[0] != topologyVersion {
		return nil, errDamaged
	}
	f, t := fields{reading: true, in: data[1:]}, &catalog.Topology{Version: version}
	f.topology(t)
	if f.err != nil {
		return nil, f.err
	}
	return t, nil
}

func (f *fields) topology(t *catalog.Topology) {
	f.bool(&t.AutoRegister)
	list(f, &t.Sets)
	for i := range t.Sets {
		s := &t.Sets[i]
		text(f, &s.Name)
		list(f, &s.Modules)
		for j := range s.Modules {
			f.module(&s.Modules[j])
		}
	}
}

func (f *fields) module(m *catalog.Module) {
	text(f, &m.Name)
	num(f, &m.Default)
	list(f, &m.Hosts)
	for k := range m.Hosts {
		f.host(&m.Hosts[k])
	}
}
