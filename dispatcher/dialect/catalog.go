package dialect

import (
	"io"
	"iter"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
	"github.com/procfleet/procfleet/catalog"
)

// Endpoints of the process catalog of a business: its templates, and the modules to
// which they are bound.

// EditTemplates is the endpoint that creates and changes processes, and binds them to
// modules.
type EditTemplates = Codec[TemplateEdits, TemplatesEdited]

// TemplateEdits is a list of edits. The store applies all of them or none.
type TemplateEdits struct {
	Business catalog.Business `json:"business"`
	Edits    []catalog.Edit   `json:"edits"`
	// IfThere makes the edit of a process that does not exist succeed without effect. It
	// requires a single edit.
	IfThere bool `json:"if_there,omitempty"`
}

// TemplatesEdited has the results of the edits, in their order. Edits is empty if
// [TemplateEdits.IfThere] ignored the edit.
type TemplatesEdited struct {
	Edits []catalog.Edited
	// Task is the task that notifies agents of changed bindings; "" if none changed.
	Task procfleet.TaskID
}

// DeleteTemplate is the endpoint that deletes a process from the catalog. The result
// reports whether the process existed.
type DeleteTemplate = Codec[TemplateQuery, bool]

// ShowTemplate is the endpoint that returns one process of the catalog.
type ShowTemplate struct {
	Decode func(r *Request) (TemplateQuery, error)
	// Encode receives a nil template if the process does not exist.
	Encode func(q *TemplateQuery, t *catalog.Template, requestID string) (Reply, error)
}

// TemplateQuery identifies one process of a business.
type TemplateQuery struct {
	Business catalog.Business `json:"business"`
	ID       int64            `json:"id"`
}

// SearchTemplates is the endpoint that searches the processes of the catalog.
type SearchTemplates struct {
	Decode func(r *Request) (TemplateSearch, error)
	Encode func(q *TemplateSearch, page []catalog.Template, total int, requestID string) Reply
	// EncodeAll streams the complete result of a search with limit 0 in parts. It writes
	// each part before it reads the next one, and returns the first error of reading or
	// writing. It is nil for calls whose searches always have a limit.
	EncodeAll func(w io.Writer, q *TemplateSearch, total int, parts iter.Seq2[[]catalog.Template, error]) error
}

// TemplateSearch is a search in the catalog of a business. Fields are the attributes in
// the response, as the dialect names them; an empty list selects all attributes.
type TemplateSearch struct {
	Business catalog.Business `json:"business"`
	Search   catalog.Search   `json:"search"`
	Fields   []string         `json:"fields,omitempty"`
}

// ShowModules is the endpoint that returns the modules of a business, and to which of
// them a process is bound.
type ShowModules = Codec[TemplateQuery, TemplateModules]

// TemplateModules is a process and the topology of its business. Template is nil if the
// process does not exist.
type TemplateModules struct {
	Template *catalog.Template
	Topology *catalog.Topology
}

func (ShowTemplate) endpoint()    {}
func (SearchTemplates) endpoint() {}

// SaveTemplates is the endpoint that creates or changes processes by name.
type SaveTemplates = Codec[NamedTemplates, TemplatesSaved]

// NamedTemplates is a list of processes with unique names. Each is created, or changed
// if the business already has a process of this name. The store saves all of them or
// none.
type NamedTemplates struct {
	Business  catalog.Business `json:"business"`
	Templates []NamedTemplate  `json:"templates"` // 1 to [catalog.MaxEdits]
	// Plan computes the result without saving anything.
	Plan bool `json:"plan,omitempty"`
}

// NamedTemplate is the desired state of one process.
type NamedTemplate struct {
	// Set always contains the name. An absent attribute keeps its value; in a new
	// process it has its default.
	Set map[catalog.Attribute]catalog.Value `json:"set"`
	// Modules is the complete list of modules to which the process is to be bound,
	// sorted by bytes; nil keeps the bindings.
	Modules []string `json:"modules"`
}

func (n *NamedTemplate) Name() string {
	name, _ := n.Set[catalog.AttrName].AsText()
	return name
}

// TemplatesSaved has the results in the order of the request.
type TemplatesSaved struct {
	Templates []TemplateSaved `json:"templates"`
	// Task is the task that notifies agents of changed bindings; "" if none changed.
	Task procfleet.TaskID `json:"task,omitempty"`
}

// TemplateSaved is the result of saving one process.
type TemplateSaved struct {
	ID      int64          `json:"id"` // 0 for a process that a plan would create
	Outcome v1.SaveOutcome `json:"outcome"`
	// Changes are the changed attributes in the order of [catalog.AttributeRules],
	// followed by [catalog.AttrModule] if the bindings changed. It is empty unless
	// Outcome is [v1.SavedChanged].
	Changes []catalog.Attribute `json:"changes,omitempty"`
}
