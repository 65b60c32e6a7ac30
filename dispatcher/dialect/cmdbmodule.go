package dialect

import (
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

// decodeCMDBModules rejects an id that is not a number with another code than the other
// calls do.
func decodeCMDBModules(r *Request) (TemplateQuery, error) { return cmdbQuery(r, cmdbNotNumber) }

// cmdbModule is a module of the business, and whether the process is bound to it.
// Modules of the same name in several sets are one entry.
type cmdbModule struct {
	Name  string `json:"bk_module_name"`
	Sets  int    `json:"set_num"`
	Bound int    `json:"is_bind"` // 1 if the process is bound to the module, otherwise 0
}

// cmdbModules lists the modules to which processes may be bound, in the order of the
// topology. It omits modules of idle or defective hosts, whose Default is not 0. A
// process that does not exist is bound to no module.
func cmdbModules(_ *TemplateQuery, found TemplateModules, _ string) Reply {
	modules := []cmdbModule{}
	at := make(map[string]int) // from the name
	for _, set := range found.Topology.Sets {
		for _, m := range set.Modules {
			if m.Default != 0 {
				continue
			}
			n, known := at[m.Name]
			if !known {
				n = len(modules)
				at[m.Name] = n
				modules = append(modules, cmdbModule{Name: m.Name})
				if found.Template != nil && slices.Contains(found.Template.Modules, m.Name) {
					modules[n].Bound = 1
				}
			}
			modules[n].Sets++
		}
	}
	return cmdbAnswer(modules)
}

func decodeCMDBBind(r *Request) (TemplateEdits, error) {
	q, err := cmdbBinding(r)
	if err == nil && q.ID < 1 {
		err = noCMDBProcess(q.ID)
	}
	return TemplateEdits{Business: q.Business, Edits: []catalog.Edit{{ID: q.ID, Bind: []string{r.Wildcards["module"]}}}}, err
}

// decodeCMDBUnbind decodes the removal of a binding. It succeeds also if the binding or
// the process does not exist.
func decodeCMDBUnbind(r *Request) (TemplateEdits, error) {
	q, err := cmdbBinding(r)
	if q.ID == 0 { // 0 would create a process
		q.ID = -1 // no process has this id
	}
	return TemplateEdits{Business: q.Business, Edits: []catalog.Edit{{ID: q.ID, Unbind: []string{r.Wildcards["module"]}}}, IfThere: true}, err
}

// cmdbBinding reads the process from a path that also names a module, and validates the
// module.
func cmdbBinding(r *Request) (TemplateQuery, error) {
	q, err := cmdbQuery(r, cmdbBadPath)
	if err != nil {
		return q, err
	}
	if err := catalog.ValidModule(r.Wildcards["module"]); err != nil {
		return q, refused(err, func(string) string { return "bk_module_name" })
	}
	return q, nil
}
