package dialect

// permission is how Job says which permissions a caller would need, in the
// form of BlueKing's permission centre.
type permission struct {
	SystemID   string             `json:"system_id"`
	SystemName string             `json:"system_name"`
	Actions    []permissionAction `json:"actions"`
}

type permissionAction struct {
	ID        string               `json:"id"`
	Name      string               `json:"name"`
	Resources []permissionResource `json:"related_resource_types"`
}

type permissionResource struct {
	SystemID   string                 `json:"system_id"`
	SystemName string                 `json:"system_name"`
	Type       string                 `json:"type"`
	TypeName   string                 `json:"type_name"`
	Instances  [][]permissionInstance `json:"instances"`
}

type permissionInstance struct {
	Type     string `json:"type"`
	TypeName string `json:"type_name"`
	ID       string `json:"id"`
	Name     string `json:"name"`
}

// permissionFor names the actions, each with the business if it is for one.
func permissionFor(d *Denied) permission {
	p := permission{SystemID: "procfleet", SystemName: "procfleet", Actions: []permissionAction{}}
	for _, action := range d.Actions {
		a := permissionAction{ID: action, Name: action, Resources: []permissionResource{}}
		if d.Business != "" {
			a.Resources = append(a.Resources, permissionResource{
				SystemID: "bk_cmdb", SystemName: "bk_cmdb", Type: "biz", TypeName: "business",
				Instances: [][]permissionInstance{{{Type: "biz", TypeName: "business", ID: d.Business, Name: d.Business}}},
			})
		}
		p.Actions = append(p.Actions, a)
	}
	return p
}
