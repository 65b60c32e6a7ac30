package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// CatalogueProcess is a process that a business defines once for all hosts of
// the modules that it is bound to.
type CatalogueProcess struct {
	// ID, CreatedAt and ChangedAt are the server's; what is saved needs none.
	ID int64
	// Attributes are by their names in the API, such as "name" and
	// "start_cmd"; each is nil, a string, an int64 or a bool.
	Attributes map[string]any
	// Modules are the names of the modules that it is bound to. In what is
	// saved nil leaves them as they are.
	Modules   []string
	CreatedAt time.Time
	ChangedAt time.Time
}

// Name is the process's name.
func (p *CatalogueProcess) Name() string {
	name, _ := p.Attributes["name"].(string)
	return name
}

// MarshalJSON writes what is saved.
func (p CatalogueProcess) MarshalJSON() ([]byte, error) {
	members := make(map[string]any, len(p.Attributes)+1)
	maps.Copy(members, p.Attributes)
	if p.Modules != nil {
		members["modules"] = p.Modules
	}
	return json.Marshal(members)
}

// UnmarshalJSON reads what the API answers with.
func (p *CatalogueProcess) UnmarshalJSON(text []byte) error {
	var known struct {
		ID        int64     `json:"id"`
		Modules   []string  `json:"modules"`
		CreatedAt time.Time `json:"created_at"`
		ChangedAt time.Time `json:"changed_at"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	*p = CatalogueProcess{ID: known.ID, Modules: known.Modules, CreatedAt: known.CreatedAt, ChangedAt: known.ChangedAt}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&p.Attributes); err != nil {
		return err
	}
	for _, name := range []string{"id", "modules", "created_at", "changed_at"} {
		delete(p.Attributes, name)
	}
	for name, value := range p.Attributes {
		number, ok := value.(json.Number)
		if !ok {
			continue
		}
		n, err := number.Int64()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.Attributes[name] = n
	}
	return nil
}

// CatalogueQuery selects processes of a catalogue; the zero query is all.
type CatalogueQuery struct {
	Name   string // a part of the name, or with Exact all of it
	Exact  bool
	Module string // that they are bound to
	// PageSize is how many the server is asked for at a time, 1 to 1000; zero
	// is 1000.
	PageSize int
}

const cataloguePath = "/v1/catalogue"

// Catalogue yields the processes that a business defines, by name. It ends
// after the first error. What comes or goes meanwhile may move others to where
// they are left out, or come twice.
func (c *Client) Catalogue(ctx context.Context, b Business, q CatalogueQuery) iter.Seq2[CatalogueProcess, error] {
	return all(Query{PageSize: q.PageSize}, func(page Query) (Page[CatalogueProcess], error) {
		var answer struct {
			Processes []CatalogueProcess `json:"processes"`
			Next      string             `json:"next"`
		}
		values := url.Values{}
		for name, value := range map[string]string{"name": q.Name, "module": q.Module, "start": page.Cursor} {
			if value != "" {
				values.Set(name, value)
			}
		}
		if q.Exact {
			values.Set("exact", "true")
		}
		values.Set("limit", strconv.Itoa(page.size()))
		err := c.do(ctx, get(b.path(cataloguePath, "", values)), &answer)
		return Page[CatalogueProcess]{answer.Processes, answer.Next}, err
	})
}

// CatalogueSaved is what became of processes, in the order in which they were
// given. Its JSON is the API's.
type CatalogueSaved struct {
	Processes []SavedProcess `json:"processes"`
	// Task tells agents of what was bound or unbound; empty if there is none.
	Task procfleet.TaskID `json:"task"`
}

// SavedProcess is what became of one process.
type SavedProcess struct {
	Name    string `json:"name"`
	ID      int64  `json:"id,omitempty"` // 0 of one that would be created
	Outcome string `json:"outcome"`      // created, changed or unchanged
	// Changes are the members that differ from before; only of what is changed.
	Changes []string `json:"changes"`
}

// LargestSave is the most processes that are saved at a time.
const LargestSave = 1000

// SaveCatalogue makes processes, or changes those that have the same names:
// all of them or, if one is refused, none. Attributes that they have not stay
// as they are, or begin with their defaults. After an answer that was lost on
// its way, what the attempt before has done counts as unchanged.
func (c *Client) SaveCatalogue(ctx context.Context, b Business, processes []CatalogueProcess) (CatalogueSaved, error) {
	return c.saveCatalogue(ctx, b, processes, nil)
}

// PlanCatalogue says what [Client.SaveCatalogue] would do, and does nothing.
func (c *Client) PlanCatalogue(ctx context.Context, b Business, processes []CatalogueProcess) (CatalogueSaved, error) {
	return c.saveCatalogue(ctx, b, processes, url.Values{"plan": {"true"}})
}

func (c *Client) saveCatalogue(ctx context.Context, b Business, processes []CatalogueProcess, query url.Values) (CatalogueSaved, error) {
	var answer CatalogueSaved
	path := b.path(cataloguePath, "", query)
	err := c.send(ctx, http.MethodPut, path, map[string]any{"processes": processes}, &answer)
	if err == nil && len(answer.Processes) != len(processes) {
		err = fmt.Errorf("%s: %w: it has %d entries for %d processes", path, ErrBadAnswer, len(answer.Processes), len(processes))
	}
	return answer, err
}
