package pack

import (
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/packing"
)

// packedAttributes lists the attributes in the order in which their values are packed.
// New attributes may only be added at the end.
var packedAttributes = [...]catalog.Attribute{
	catalog.AttrName, catalog.AttrDescription, catalog.AttrBindIP, catalog.AttrPort, catalog.AttrProtocol,
	catalog.AttrFuncID, catalog.AttrFuncName, catalog.AttrWorkPath, catalog.AttrUser, catalog.AttrInstances,
	catalog.AttrPriority, catalog.AttrTimeout, catalog.AttrStart, catalog.AttrStop, catalog.AttrRestart,
	catalog.AttrKill, catalog.AttrReload, catalog.AttrPidFile, catalog.AttrAutoStart, catalog.AttrAutoStartGap,
	catalog.AttrArgsPattern,
}

// Template packs a template.
func Template(t *catalog.Template) []byte {
	f := packing.Writing(256)
	templateFields(f, t)
	return f.Out
}

// ReadTemplate parses the output of [Template]. The texts of the template share the
// memory of data.
func ReadTemplate(data string) (*catalog.Template, error) {
	f, err := packing.Reading(data)
	if err != nil {
		return nil, err
	}
	t := &catalog.Template{Values: make(map[catalog.Attribute]catalog.Value, len(packedAttributes))}
	templateFields(f, t)
	if f.Err != nil {
		return nil, f.Err
	}
	return t, nil
}

func templateFields(f *packing.Fields, t *catalog.Template) {
	packing.Num(f, &t.ID)
	f.Time(&t.CreatedAt)
	near(f, &t.ChangedAt, t.CreatedAt)
	f.Texts(&t.Modules)
	for _, a := range packedAttributes {
		v := t.Values[a]
		valueFields(f, &v)
		t.Values[a] = v
	}
}

// valueFields writes or reads the kind of a value, then the value.
func valueFields(f *packing.Fields, v *catalog.Value) {
	const none, number, words, yes, no = 0, 1, 2, 3, 4
	form := uint64(none)
	n, isNumber := v.AsNumber()
	s, isText := v.AsText()
	is, isTruth := v.AsTruth()
	switch {
	case isNumber:
		form = number
	case isText:
		form = words
	case isTruth && is:
		form = yes
	case isTruth:
		form = no
	}
	f.Uint(&form)
	switch form {
	case none:
		*v = catalog.Value{}
	case number:
		packing.Num(f, &n)
		*v = catalog.Number(n)
	case words:
		packing.Text(f, &s)
		*v = catalog.Text(s)
	case yes, no:
		*v = catalog.Truth(form == yes)
	default:
		f.Fail()
	}
}

// Topology packs a topology without its version. A host with an IPv4 address takes 6
// bytes.
func Topology(t *catalog.Topology) []byte {
	f := packing.Writing(256)
	topologyFields(f, t)
	return f.Out
}

// ReadTopology parses the output of [Topology]. The names share the memory of data.
func ReadTopology(version int64, data string) (*catalog.Topology, error) {
	f, err := packing.Reading(data)
	if err != nil {
		return nil, err
	}
	t := &catalog.Topology{Version: version}
	topologyFields(f, t)
	if f.Err != nil {
		return nil, f.Err
	}
	return t, nil
}

func topologyFields(f *packing.Fields, t *catalog.Topology) {
	f.Bool(&t.AutoRegister)
	packing.List(f, &t.Sets)
	for i := range t.Sets {
		s := &t.Sets[i]
		packing.Text(f, &s.Name)
		packing.List(f, &s.Modules)
		for j := range s.Modules {
			moduleFields(f, &s.Modules[j])
		}
	}
}

func moduleFields(f *packing.Fields, m *catalog.Module) {
	packing.Text(f, &m.Name)
	packing.Num(f, &m.Default)
	packing.List(f, &m.Hosts)
	for k := range m.Hosts {
		f.Host(&m.Hosts[k])
	}
	f.Texts(&m.Labels)
}
