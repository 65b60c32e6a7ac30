package procfleet

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestASelectionIsOfIDsOrOfNames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		selection Selection
		field     string // "" is valid
	}{
		"ids":                  {Selection{Processes: []int64{1, 7}}, ""},
		"a name":               {Selection{Name: "nginx"}, ""},
		"a pattern":            {Selection{Name: `[a-c]?\*x*`, Sets: []string{"s"}, Modules: []string{"m", "n"}}, ""},
		"neither":              {Selection{Modules: []string{"m"}}, "processes"},
		"both":                 {Selection{Name: "a", Processes: []int64{1}}, "processes"},
		"too many":             {Selection{Processes: slices.Repeat([]int64{1}, MaxSelected+1)}, "processes"},
		"no id":                {Selection{Processes: []int64{1, -1}}, "processes[1]"},
		"an open class":        {Selection{Name: "a[b"}, "name"},
		"an escape of nothing": {Selection{Name: `a\`}, "name"},
		"a long name":          {Selection{Name: strings.Repeat("x", MaxKey+1)}, "name"},
		"no text":              {Selection{Name: "a\xff"}, "name"},
		"an empty set":         {Selection{Name: "a", Sets: []string{"s", ""}}, "sets[1]"},
		"a module with a NUL":  {Selection{Name: "a", Modules: []string{"\x00"}}, "modules[0]"},
		"too many modules":     {Selection{Name: "a", Modules: slices.Repeat([]string{"m"}, MaxSelected+1)}, "modules"},
	} {
		err := c.selection.Validate()
		if invalid, ok := errors.AsType[*FieldError](err); ok != (c.field != "") || ok && invalid.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBesideASelectionThereIsNothing(t *testing.T) {
	t.Parallel()
	valid := Operation{Action: ActionStop, Selection: &Selection{Name: "nginx"}}
	for name, err := range map[string]error{"strict": valid.Validate(), "bounds": valid.ValidateBounds()} {
		if err != nil {
			t.Errorf("%s: a valid operation is refused: %v", name, err)
		}
	}
	for field, spoil := range map[string]func(*Operation){
		"action":      func(o *Operation) { o.Action = "explode" },
		"select.name": func(o *Operation) { o.Selection = &Selection{Name: "["} },
		"registered":  func(o *Operation) { o.Registered = true },
		"hosts":       func(o *Operation) { o.Targets = []Target{{AgentID: "a"}} },
		"process":     func(o *Operation) { o.Process = nginx() },
	} {
		o := valid
		spoil(&o)
		for _, err := range []error{o.Validate(), o.ValidateBounds()} {
			if invalid, ok := errors.AsType[*FieldError](err); !ok || invalid.Field != field {
				t.Errorf("%s: got %v", field, err)
			}
		}
	}
	many := Submission{Operations: slices.Repeat([]Operation{valid}, MaxSelectors)}
	if err := many.Validate(); err != nil {
		t.Errorf("as many selections as are allowed: %v", err)
	}
	many.Operations = append(many.Operations, valid)
	if err := many.Validate(); err == nil {
		t.Error("one selection too many passes")
	}
}
