package dialect

import (
	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// SaveTemplates creates or changes processes by their names.
type SaveTemplates = Codec[NamedTemplates, TemplatesSaved]

// NamedTemplates are processes that are created, or changed if the business has one
// of the name, together or not at all. Names are unique.
type NamedTemplates struct {
	Business  catalog.Business `json:"business"`
	Templates []NamedTemplate  `json:"templates"` // 1 to [catalog.MaxEdits]
	// Plan returns what would be saved, and changes nothing.
	Plan bool `json:"plan,omitempty"`
}

// NamedTemplate is the wanted state of one process.
type NamedTemplate struct {
	// Set includes the name. Other attributes keep their values, or have their
	// defaults in a new process.
	Set map[catalog.Attribute]catalog.Value `json:"set"`
	// Modules are all modules to which the process is to be bound, sorted by bytes;
	// nil keeps the bindings.
	Modules []string `json:"modules"`
}

// Name is the process's name.
func (n *NamedTemplate) Name() string {
	name, _ := n.Set[catalog.AttrName].AsText()
	return name
}

// TemplatesSaved are the results, in the order of the request.
type TemplatesSaved struct {
	Templates []TemplateSaved `json:"templates"`
	// Task notifies the agents of bindings; "" if none changed.
	Task procfleet.TaskID `json:"task,omitempty"`
}

// TemplateSaved is the result of saving one process.
type TemplateSaved struct {
	ID      int64          `json:"id"` // 0 of one that is only planned
	Outcome v1.SaveOutcome `json:"outcome"`
	// Changes are the attributes that changed, in their order, and
	// [catalog.AttrModule] at the end if that did; only of [v1.SavedChanged].
	Changes []catalog.Attribute `json:"changes,omitempty"`
}
