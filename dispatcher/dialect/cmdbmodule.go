package dialect

import (
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

// decodeCMDBModules has another code for ids that are no numbers than the
// other calls.
func decodeCMDBModules(r *Request) (TemplateQuery, error) { return cmdbQuery(r, cmdbNotNumber) }

// cmdbModule is a module of the business, and whether the process is bound to
// it. Modules of the same name, in several sets, are one.
type cmdbModule struct {
	Name  string `json:"bk_module_name"`
	Sets  int    `json:"set_num"`
	Bound int    `json:"is_bind"` // 1 if it is, 0 if not
}

// cmdbModules lists the modules that processes are meant for, in the order of
// the topology. A process that does not exist is bound to none.
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

// decodeCMDBUnbind takes away what need not be there, neither the binding nor
// the process.
func decodeCMDBUnbind(r *Request) (TemplateEdits, error) {
	q, err := cmdbBinding(r)
	if q.ID == 0 { // which would be a new process
		q.ID = -1 // which no process has either
	}
	return TemplateEdits{Business: q.Business, Edits: []catalog.Edit{{ID: q.ID, Unbind: []string{r.Wildcards["module"]}}}, IfThere: true}, err
}

// cmdbBinding is the process of the path, beside which there is a module.
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
