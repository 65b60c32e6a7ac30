package dialect

import (
	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// SaveTemplates creates or changes processes by their names.
type SaveTemplates = Codec[NamedTemplates, TemplatesSaved]

// NamedTemplates are processes that are made, or changed where the business
// has one of the name, together or not at all. No name comes twice.
type NamedTemplates struct {
	Business  catalog.Business `json:"business"`
	Templates []NamedTemplate  `json:"templates"` // 1 to [catalog.MaxEdits]
	// Plan asks what would become of them, and changes nothing.
	Plan bool `json:"plan,omitempty"`
}

// NamedTemplate is what one process becomes.
type NamedTemplate struct {
	// Set has the name. Attributes that it has not stay as they are, or begin
	// with their defaults.
	Set map[catalog.Attribute]catalog.Value `json:"set"`
	// Modules are all to which it is bound from then on, by their bytes; nil
	// leaves that alone.
	Modules []string `json:"modules"`
}

// Name is the process's name.
func (n *NamedTemplate) Name() string {
	name, _ := n.Set[catalog.AttrName].AsText()
	return name
}

// TemplatesSaved is what became of processes, in the order of the question.
type TemplatesSaved struct {
	Templates []TemplateSaved `json:"templates"`
	// Task tells the agents of what was bound or unbound; "" if there is none.
	Task procfleet.TaskID `json:"task,omitempty"`
}

// TemplateSaved is what became of one process.
type TemplateSaved struct {
	ID      int64          `json:"id"` // 0 of one that is only planned
	Outcome v1.SaveOutcome `json:"outcome"`
	// Changes are the attributes that changed, in their order, and
	// [catalog.AttrModule] at the end if that did; only of [v1.SavedChanged].
	Changes []catalog.Attribute `json:"changes,omitempty"`
}
