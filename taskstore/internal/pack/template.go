package pack

import (
	"github.com/procfleet/procfleet/catalog"
)

const templateVersion = 1

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
	f := fields{out: make([]byte, 0, 256)}
	f.out = append(f.out, templateVersion)
	f.template(t)
	return f.out
}

// ReadTemplate parses the output of [Template]. The texts of the template share the
// memory of data.
func ReadTemplate(data string) (*catalog.Template, error) {
	if data == "" || data[0] != templateVersion {
		return nil, errDamaged
	}
	t := &catalog.Template{Values: make(map[catalog.Attribute]catalog.Value, len(packedAttributes))}
	f := fields{reading: true, in: data[1:]}
	f.template(t)
	if f.err != nil {
		return nil, f.err
	}
	return t, nil
}

func (f *fields) template(t *catalog.Template) {
	num(f, &t.ID)
	f.time(&t.CreatedAt)
	f.near(&t.ChangedAt, t.CreatedAt)
	f.texts(&t.Modules)
	for _, a := range packedAttributes {
		v := t.Values[a]
		f.value(&v)
		t.Values[a] = v
	}
}

// value writes or reads the kind of a value, then the value.
func (f *fields) value(v *catalog.Value) {
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
	f.uint(&form)
	switch form {
	case none:
		*v = catalog.Value{}
	case number:
		num(f, &n)
		*v = catalog.Number(n)
	case words:
		text(f, &s)
		*v = catalog.Text(s)
	case yes, no:
		*v = catalog.Truth(form == yes)
	default:
		f.fail()
	}
}

const topologyVersion = 1

// Topology packs a topology without its version. A host with an IPv4 address takes 6
// bytes.
func Topology(t *catalog.Topology) []byte {
	f := fields{out: []byte{topologyVersion}}
	f.topology(t)
	return f.out
}

// ReadTopology parses the output of [Topology]. The names share the memory of data.
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
