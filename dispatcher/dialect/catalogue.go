package dialect

import (
	"io"
	"iter"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// The uses of calls about the process catalogue of a business: the templates
// that it defines, and the modules that they are bound to.

// EditTemplates is the use of calls that define processes, change them, and
// bind them to modules.
type EditTemplates struct {
	Decode func(r *Request) (TemplateEdits, error)
	Encode func(q *TemplateEdits, done TemplatesEdited, requestID string) Reply
}

// TemplateEdits are done together or not at all.
type TemplateEdits struct {
	Business catalog.Business `json:"business"`
	Edits    []catalog.Edit   `json:"edits"`
	// IfThere lets edits of processes that do not exist be none at all, and no
	// failure. It is for one edit by itself.
	IfThere bool `json:"if_there,omitempty"`
}

// TemplatesEdited is what became of edits, in their order.
type TemplatesEdited struct {
	Edits []catalog.Edited
	// Task tells the agents of what was bound or unbound; "" if there is none.
	Task procfleet.TaskID
}

// DeleteTemplate is the use of calls that take a process out of the catalogue.
type DeleteTemplate struct {
	Decode func(r *Request) (TemplateQuery, error)
	Encode func(q *TemplateQuery, existed bool, requestID string) Reply
}

// ShowTemplate is the use of calls that answer with one process.
type ShowTemplate struct {
	Decode func(r *Request) (TemplateQuery, error)
	// Encode is given nil for one that does not exist.
	Encode func(q *TemplateQuery, t *catalog.Template, requestID string) (Reply, error)
}

// TemplateQuery asks for one process of a business.
type TemplateQuery struct {
	Business catalog.Business `json:"business"`
	ID       int64            `json:"id"`
}

// SearchTemplates is the use of calls that look for processes.
type SearchTemplates struct {
	Decode func(r *Request) (TemplateSearch, error)
	Encode func(q *TemplateSearch, page []catalog.Template, total int, requestID string) Reply
	// EncodeAll answers a search with a limit of 0, which asks for everything.
	// What is found comes in parts; the encoder writes as it reads, and returns
	// the first error of either side. It is nil for calls that always have a
	// limit.
	EncodeAll func(w io.Writer, q *TemplateSearch, total int, parts iter.Seq2[[]catalog.Template, error]) error
}

// TemplateSearch asks for what is found in a business. Fields are what the
// dialect shows of it; none is everything.
type TemplateSearch struct {
	Business catalog.Business `json:"business"`
	Search   catalog.Search   `json:"search"`
	Fields   []string         `json:"fields,omitempty"`
}

// ShowModules is the use of calls that tell to which modules a process is bound.
type ShowModules struct {
	Decode func(r *Request) (TemplateQuery, error)
	// Encode is given nil for a process that does not exist.
	Encode func(q *TemplateQuery, t *catalog.Template, where *catalog.Topology, requestID string) (Reply, error)
}

func (EditTemplates) use()   {}
func (DeleteTemplate) use()  {}
func (ShowTemplate) use()    {}
func (SearchTemplates) use() {}
func (ShowModules) use()     {}
