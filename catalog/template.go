package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Template is a process as a business defines it: once, for all hosts of the
// modules that it is bound to.
type Template struct {
	ID int64 `json:"id"` // unique in the whole store, never given twice
	// Values has a value, if only nothing, for each of [AttributeRules].
	Values map[Attribute]Value `json:"values"`
	// Modules are the names of the modules that it is bound to, by their bytes.
	Modules   []string  `json:"modules"`
	CreatedAt time.Time `json:"created_at"`
	// ChangedAt is when its values were last set, to the same or others; to
	// bind it to modules does not move it.
	ChangedAt time.Time `json:"changed_at"`
}

// Name is the template's name.
func (t *Template) Name() string { return t.Values[AttrName].text }

// Edit makes a template, or changes one.
type Edit struct {
	// ID is the template to change; 0 makes one, of Set and the defaults.
	ID int64 `json:"id,omitempty"`
	// Set is what its attributes become; others stay.
	Set map[Attribute]Value `json:"set,omitempty"`
	// Bind and Unbind are names of modules, which need not exist; none is in
	// both. To bind what is bound, or unbind what is not, changes nothing.
	Bind   []string `json:"bind,omitempty"`
	Unbind []string `json:"unbind,omitempty"`
}

// Why a template is not changed.
var (
	ErrNoTemplate = errors.New("there is no such process in the business")
	// ErrBound refuses to delete.
	ErrBound = errors.New("the process is bound to modules")
)

// DuplicateError refuses a template whose attributes another one has: its
// name; its function id, if it has one; or its argument pattern and function
// name, if it has both.
type DuplicateError struct {
	Attributes []Attribute
	// Of is the other template; 0 is one that the same call would have made.
	Of int64
}

func (e *DuplicateError) Error() string {
	names := make([]string, len(e.Attributes))
	for i, a := range e.Attributes {
		names[i] = string(a)
	}
	if e.Of == 0 {
		return "another process of the request has the same " + strings.Join(names, " and ")
	}
	return fmt.Sprintf("process %d has the same %s", e.Of, strings.Join(names, " and "))
}

// Unique are the attributes that, taken together, no two templates of a
// business share. A set of which one is empty does not count.
func Unique() [][]Attribute {
	return [][]Attribute{{AttrName}, {AttrFuncID}, {AttrArgsPattern, AttrFuncName}}
}

// EditError says which edit kept all of them from being done, and why: Err is
// [ErrNoTemplate], a [*DuplicateError], a [*ValueError], or a
// [procfleet.FieldError] about its modules.
type EditError struct {
	Index int // of the edit
	ID    int64
	Err   error
}

func (e *EditError) Error() string {
	if e.ID == 0 {
		return fmt.Sprintf("new process %d of the request: %v", e.Index, e.Err)
	}
	return fmt.Sprintf("process %d: %v", e.ID, e.Err)
}

func (e *EditError) Unwrap() error { return e.Err }

// Edited is what became of an edit.
type Edited struct {
	ID int64
	// Bound and Unbound are the modules for which that is new, by their bytes.
	Bound, Unbound []string
}

// Comparison is how a [Condition] compares.
type Comparison string

// The comparisons. Less, AtMost, More and AtLeast compare values of one type only.
const (
	Is       Comparison = "is"
	IsNot    Comparison = "is not"
	In       Comparison = "in" // is one of Values
	NotIn    Comparison = "not in"
	Contains Comparison = "contains" // a text has this part, in the same case
	Less     Comparison = "less"
	AtMost   Comparison = "at most"
	More     Comparison = "more"
	AtLeast  Comparison = "at least"
)

// Condition is a condition on one attribute of a template. Ports compare and
// sort as text, so that 80 is "80".
type Condition struct {
	Attribute  Attribute
	Comparison Comparison
	Values     []Value // one; of In and NotIn any number
}

// Search selects the templates that meet all conditions.
type Search struct {
	Conditions []Condition
	// Sort is the attribute to sort by; "" and every tie sort by id, ascending.
	Sort       Attribute
	Descending bool
	Start      int // how many are left out
	Limit      int // 1 to MaxTemplatePage
}

// Bounds of templates and of calls about them.
const (
	MaxTemplatePage    = 1000
	MaxEdits           = 1000   // at once
	MaxBound           = 10_000 // modules of one template
	MaxConditions      = 100    // of one search
	MaxConditionValues = 10_000 // of one condition
)

// Templates stores the process templates of businesses. Names are unique in a
// business at every moment, also with concurrent calls. See [Unique].
type Templates interface {
	// EditTemplates does all edits in one step, or none: then the error is an
	// [*EditError]; after any other error the edits may have been done. No
	// template may be edited twice in one call. Uniqueness is checked after all
	// edits, so that two templates can swap their names. New templates get ids
	// in the order of the edits, larger than the ids of all earlier calls.
	EditTemplates(ctx context.Context, b Business, edits []Edit) ([]Edited, error)
	// DeleteTemplate reports whether the template existed. It returns [ErrBound]
	// while the template is bound to a module.
	DeleteTemplate(ctx context.Context, b Business, id int64) (existed bool, err error)
	// Templates returns one entry per id, in order; nil for those that do not
	// exist.
	Templates(ctx context.Context, b Business, ids []int64) ([]*Template, error)
	// SearchTemplates returns a page of the matching templates, and the number
	// of all; a template that changes while the page is read may be missing. It
	// sees every edit that returned before the call. A search that is not valid
	// ([Search.Validate]) is an error.
	SearchTemplates(ctx context.Context, b Business, s Search) (page []Template, total int, err error)
	// FindTemplates returns the ids of all templates that a search finds, as
	// they were at one moment, in its order after the first Start. Its Limit
	// does not count.
	FindTemplates(ctx context.Context, b Business, s Search) (ids []int64, err error)
}
