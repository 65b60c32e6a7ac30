package dialect

import (
	"io"
	"iter"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints of the process catalog of a business: the templates that it
// defines, and the modules that they are bound to.

// EditTemplates creates and changes processes, and binds them to modules.
type EditTemplates = Codec[TemplateEdits, TemplatesEdited]

// TemplateEdits are applied together or not at all.
type TemplateEdits struct {
	Business catalog.Business `json:"business"`
	Edits    []catalog.Edit   `json:"edits"`
	// IfThere ignores an edit of a process that does not exist. It requires a single edit.
	IfThere bool `json:"if_there,omitempty"`
}

// TemplatesEdited are the results of edits, in their order.
type TemplatesEdited struct {
	Edits []catalog.Edited
	// Task notifies the agents of bindings; "" if none changed.
	Task procfleet.TaskID
}

// DeleteTemplate deletes a process from the catalog; the result is whether it existed.
type DeleteTemplate = Codec[TemplateQuery, bool]

// ShowTemplate returns one process.
type ShowTemplate struct {
	Decode func(r *Request) (TemplateQuery, error)
	// Encode receives nil for a process that does not exist.
	Encode func(q *TemplateQuery, t *catalog.Template, requestID string) (Reply, error)
}

// TemplateQuery asks for one process of a business.
type TemplateQuery struct {
	Business catalog.Business `json:"business"`
	ID       int64            `json:"id"`
}

// SearchTemplates returns the processes that a search finds.
type SearchTemplates struct {
	Decode func(r *Request) (TemplateSearch, error)
	Encode func(q *TemplateSearch, page []catalog.Template, total int, requestID string) Reply
	// EncodeAll streams the result of a search with a limit of 0, which asks for
	// everything, in parts. The encoder writes while it reads, and returns the first
	// error of either side. It is nil for calls that always have a limit.
	EncodeAll func(w io.Writer, q *TemplateSearch, total int, parts iter.Seq2[[]catalog.Template, error]) error
}

// TemplateSearch searches the catalog of a business. Fields are the attributes that
// the dialect shows; none is all.
type TemplateSearch struct {
	Business catalog.Business `json:"business"`
	Search   catalog.Search   `json:"search"`
	Fields   []string         `json:"fields,omitempty"`
}

// ShowModules returns the modules of a business, and to which of them a process is bound.
type ShowModules = Codec[TemplateQuery, TemplateModules]

// TemplateModules is a process, nil if it does not exist, and the topology of its business.
type TemplateModules struct {
	Template *catalog.Template
	Topology *catalog.Topology
}

func (ShowTemplate) endpoint()    {}
func (SearchTemplates) endpoint() {}

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
