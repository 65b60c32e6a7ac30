package catalog

import "github.com/procfleet/procfleet"

// PlacedModule is a module with the name of its set.
type PlacedModule struct {
	Set string
	*Module
}

// Path returns "set/module", for messages.
func (m PlacedModule) Path() string { return m.Set + "/" + m.Name }

// ModulesByName returns the modules of each name, in the order of the topology. Each
// set may have one module of a name.
func (t *Topology) ModulesByName() map[string][]PlacedModule {
	found := make(map[string][]PlacedModule)
	for i := range t.Sets {
		set := &t.Sets[i]
		for j := range set.Modules {
			m := &set.Modules[j]
			found[m.Name] = append(found[m.Name], PlacedModule{set.Name, m})
		}
	}
	return found
}

// Placement is a host with the paths of the modules that contain it.
type Placement struct {
	Host    procfleet.Host
	Modules []string
}

// Placements returns each host of the modules once, in the order of first mention, with
// the modules that contain it.
func Placements(modules []PlacedModule) []Placement {
	var found []Placement
	at := make(map[procfleet.Host]int)
	for _, m := range modules {
		path := m.Path()
		for _, host := range m.Hosts {
			n, known := at[host]
			if !known {
				n = len(found)
				at[host] = n
				found = append(found, Placement{Host: host})
			}
			found[n].Modules = append(found[n].Modules, path)
		}
	}
	return found
}
