package dispatcher

import (
	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// registers reports whether an operation, once accepted, makes its spec the
// registered one. A spec that was taken from a registration is there already,
// and by now there may be a newer one.
func registers(o procfleet.Operation) bool {
	return o.Action.Registers() && o.Process.Namespace != "" && o.Process.Name != "" && !o.Registered
}

// definitions collects what is to be registered: each spec once, with all its
// hosts. Of several specs that one request has for a process on a host it is
// the last.
func definitions(specs *specTable, works []hostWork) []catalog.Definition {
	var found []catalog.Definition
	at := make(map[int]int) // from the spec to its definition
	for i := range works {
		w := &works[i]
		if w.place.host.IsZero() {
			continue
		}
		for _, spec := range registeredBy(w.items) {
			n, known := at[spec]
			if !known {
				n = len(found)
				at[spec] = n
				found = append(found, catalog.Definition{Spec: *specs.specs[spec]})
			}
			found[n].Hosts = append(found[n].Hosts, w.place.host)
		}
	}
	return found
}

// registeredBy returns the specs that the items of one host register.
func registeredBy(items []plannedItem) []int {
	var specs []int
	var last map[string]int // process → where its spec is in specs
	for i := range items {
		it := &items[i]
		if !it.registers {
			continue
		}
		if len(items) == 1 { // as most hosts have
			return []int{it.Spec}
		}
		if n, again := last[it.key]; again {
			specs[n] = it.Spec
			continue
		}
		if last == nil {
			last = make(map[string]int)
		}
		last[it.key] = len(specs)
		specs = append(specs, it.Spec)
	}
	return specs
}
