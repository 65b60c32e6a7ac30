package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Template defines a process of a business, for all hosts of the modules to which the
// process is bound.
type Template struct {
	ID int64 `json:"id"` // unique in the whole store and never reused
	// Values has a value, possibly null, for each of [AttributeRules].
	Values map[Attribute]Value `json:"values"`
	// Modules holds the names of the modules to which the template is bound, sorted by
	// bytes.
	Modules   []string  `json:"modules"`
	CreatedAt time.Time `json:"created_at"`
	// ChangedAt is when the values were last set, even to the same values. Binding to
	// modules does not change it.
	ChangedAt time.Time `json:"changed_at"`
}

// Name returns the template's name.
func (t *Template) Name() string { return t.Values[AttrName].text }

// Edit creates or changes a template.
type Edit struct {
	// ID is the template to change; 0 creates one from Set and the defaults.
	ID int64 `json:"id,omitempty"`
	// Set holds the new values of attributes; other attributes remain unchanged.
	Set map[Attribute]Value `json:"set,omitempty"`
	// Bind and Unbind are names of modules, which need not exist. No name may be in
	// both. Binding a bound module, or unbinding one that is not bound, has no effect.
	Bind   []string `json:"bind,omitempty"`
	Unbind []string `json:"unbind,omitempty"`
}

// Errors of [Templates].
var (
	ErrNoTemplate = errors.New("there is no such process in the business")
	// ErrBound means that the template cannot be deleted while it is bound to modules.
	ErrBound = errors.New("the process is bound to modules")
)

// DuplicateError means that another template has the same unique attributes: the name;
// the function id, unless empty; or the argument pattern and the function name, unless
// one is empty.
type DuplicateError struct {
	Attributes []Attribute
	// Of is the id of the other template; 0 if the same call would have created it.
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

// Unique returns the sets of attributes that together must be unique among the
// templates of a business. A set in which one attribute is empty is not checked.
func Unique() [][]Attribute {
	return [][]Attribute{{AttrName}, {AttrFuncID}, {AttrArgsPattern, AttrFuncName}}
}

// EditError identifies the edit because of which none of the edits was applied. Err is
// [ErrNoTemplate], a [*DuplicateError], a [*ValueError], or a [procfleet.FieldError]
// about its modules.
type EditError struct {
	Index int // index of the edit in the call
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

// Edited is the result of an edit.
type Edited struct {
	ID int64
	// Bound and Unbound are the modules that the edit has newly bound and unbound,
	// sorted by bytes.
	Bound, Unbound []string
}

// Comparison is the operator of a [Condition].
type Comparison string

// The comparisons. Less, AtMost, More and AtLeast never match values of different
// types.
const (
	Is       Comparison = "is"
	IsNot    Comparison = "is not"
	In       Comparison = "in" // equals one of Values
	NotIn    Comparison = "not in"
	Contains Comparison = "contains" // the text contains this text, case-sensitive
	Less     Comparison = "less"
	AtMost   Comparison = "at most"
	More     Comparison = "more"
	AtLeast  Comparison = "at least"
)

// Condition is a condition on one attribute of a template. Ports are compared and
// sorted as texts, so the number 80 equals "80".
type Condition struct {
	Attribute  Attribute
	Comparison Comparison
	Values     []Value // exactly one; for In and NotIn any number
}

// Search selects the templates that meet all conditions.
type Search struct {
	Conditions []Condition
	// Sort is the attribute to sort by. "" sorts by id, ascending, and so do equal
	// values.
	Sort       Attribute
	Descending bool
	Start      int // number of matches to skip
	Limit      int // 1 to MaxTemplatePage
}

// Limits of templates and of calls about them.
const (
	MaxTemplatePage    = 1000
	MaxEdits           = 1000   // in one call
	MaxBound           = 10_000 // modules to which one template is bound
	MaxConditions      = 100    // in one search
	MaxConditionValues = 10_000 // in one condition
)

// Templates stores the process templates of businesses. The attributes of [Unique] are
// unique in a business at every moment, even with concurrent calls.
type Templates interface {
	// EditTemplates applies all edits in one step. If the error is an [*EditError],
	// none was applied; after any other error the edits may have been applied. A call
	// may edit each template only once. Uniqueness is checked after all edits, so two
	// templates can exchange their names. New templates get ids in the order of the
	// edits, larger than all ids of earlier calls.
	EditTemplates(ctx context.Context, b Business, edits []Edit) ([]Edited, error)
	// DeleteTemplate deletes a template and reports whether it existed. It returns
	// [ErrBound] while the template is bound to a module.
	DeleteTemplate(ctx context.Context, b Business, id int64) (existed bool, err error)
	// Templates returns one entry per id, in order; nil for an id that does not exist.
	Templates(ctx context.Context, b Business, ids []int64) ([]*Template, error)
	// SearchTemplates returns a page of the matching templates, and the number of all
	// matches. The result reflects every edit that returned before the call. A template
	// that changes while the page is read may be missing. If [Search.Validate] returns
	// an error, so does SearchTemplates.
	SearchTemplates(ctx context.Context, b Business, s Search) (page []Template, total int, err error)
	// FindTemplates returns the ids of all matching templates at one moment, in the
	// order of the search, after skipping the first Start matches. It ignores Limit.
	FindTemplates(ctx context.Context, b Business, s Search) (ids []int64, err error)
}
