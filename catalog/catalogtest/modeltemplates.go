package catalogtest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// EditTemplates implements [catalog.Templates].
func (m *Model) EditTemplates(ctx context.Context, b catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	now, err := m.Now(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.Validate(); err != nil {
		return nil, err
	}
	if err := catalog.ValidateEdits(edits); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	after, last, done := maps.Clone(m.templates[b]), m.lastID, make([]catalog.Edited, len(edits))
	if after == nil {
		after = map[int64]catalog.Template{}
	}
	for i, e := range edits {
		old, there := after[e.ID]
		if !there && e.ID != 0 {
			return nil, &catalog.EditError{Index: i, ID: e.ID, Err: catalog.ErrNoTemplate}
		}
		t := edited(old, e, now)
		if e.ID == 0 {
			last++
			t.ID = last
		}
		after[t.ID] = t
		done[i] = catalog.Edited{ID: t.ID, Bound: without(t.Modules, old.Modules), Unbound: without(old.Modules, t.Modules)}
	}
	for i, e := range edits {
		if err := duplicate(m.templates[b], after, done[i].ID, m.lastID); err != nil {
			return nil, &catalog.EditError{Index: i, ID: e.ID, Err: err}
		}
	}
	m.templates[b], m.lastID = after, last
	return done, nil
}

// edited returns a template after an edit; a new template has no id yet.
func edited(t catalog.Template, e catalog.Edit, now time.Time) catalog.Template {
	if e.ID == 0 {
		t.Values, t.CreatedAt, t.ChangedAt = catalog.WithDefaults(e.Set), now, now
	} else if len(e.Set) > 0 {
		t.Values, t.ChangedAt = maps.Clone(t.Values), now
		maps.Copy(t.Values, e.Set)
	}
	t.Modules = append(without(t.Modules, e.Unbind), e.Bind...)
	slices.Sort(t.Modules)
	t.Modules = slices.Compact(t.Modules)
	return t
}

// without returns the texts of all that are not in others.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(text string) bool { return slices.Contains(others, text) })
}

// duplicate returns an error if the template id has unique attributes of another
// template. Ids larger than known belong to new templates.
func duplicate(before, after map[int64]catalog.Template, id, known int64) error {
	for _, set := range catalog.Unique() {
		differs := func(t catalog.Template) bool {
			return slices.ContainsFunc(set, func(a catalog.Attribute) bool { return t.Values[a] != after[id].Values[a] })
		}
		empty := slices.ContainsFunc(set, func(a catalog.Attribute) bool { return after[id].Values[a].IsEmpty() })
		if empty || !differs(before[id]) {
			continue
		}
		for other, t := range after {
			if other == id || differs(t) {
				continue
			}
			if other > known {
				other = 0
			}
			return &catalog.DuplicateError{Attributes: set, Of: other}
		}
	}
	return nil
}

// DeleteTemplate implements [catalog.Templates].
func (m *Model) DeleteTemplate(ctx context.Context, b catalog.Business, id int64) (bool, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return false, err
	}
	t, existed := m.templates[b][id]
	if len(t.Modules) > 0 {
		return false, catalog.ErrBound
	}
	delete(m.templates[b], id)
	return existed, nil
}

// Templates implements [catalog.Templates].
func (m *Model) Templates(ctx context.Context, b catalog.Business, ids []int64) ([]*catalog.Template, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	out := make([]*catalog.Template, len(ids))
	for i, id := range ids {
		if t, ok := m.templates[b][id]; ok {
			out[i] = &t
		}
	}
	return out, err
}

// SearchTemplates implements [catalog.Templates].
func (m *Model) SearchTemplates(ctx context.Context, b catalog.Business, s catalog.Search) ([]catalog.Template, int, error) {
	if err := s.Validate(); err != nil {
		return nil, 0, err
	}
	unlock, err := m.lock(ctx)
	defer unlock()
	ids, total := Find(slices.Collect(maps.Values(m.templates[b])), s)
	var page []catalog.Template
	for _, id := range ids {
		page = append(page, m.templates[b][id])
	}
	return page, total, err
}

// FindTemplates implements [catalog.Templates].
func (m *Model) FindTemplates(ctx context.Context, b catalog.Business, s catalog.Search) ([]int64, error) {
	s.Limit = 1
	if err := s.Validate(); err != nil {
		return nil, err
	}
	unlock, err := m.lock(ctx)
	defer unlock()
	s.Limit = len(m.templates[b])
	ids, _ := Find(slices.Collect(maps.Values(m.templates[b])), s)
	return ids, err
}

// SetTopology implements [catalog.Topologies].
func (m *Model) SetTopology(ctx context.Context, b catalog.Business, t catalog.Topology) (int64, error) {
	if err := b.Validate(); err != nil {
		return 0, err
	}
	if err := t.Validate(); err != nil {
		return 0, err
	}
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return 0, err
	}
	have := m.topology(b).Version
	if t.Version != -1 && t.Version != have {
		return 0, &catalog.VersionError{Have: have, Want: t.Version}
	}
	t.Version = have + 1
	m.topologies[b] = &t
	return t.Version, nil
}

// SetModuleHosts implements [catalog.Topologies].
func (m *Model) SetModuleHosts(ctx context.Context, b catalog.Business, set, module string, hosts []procfleet.Host) (int64, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	if err != nil {
		return 0, err
	}
	t, err := m.topology(b).WithHosts(set, module, hosts)
	if err != nil {
		return 0, err
	}
	t.Version++
	m.topologies[b] = t
	return t.Version, nil
}

// Topology implements [catalog.Topologies].
func (m *Model) Topology(ctx context.Context, b catalog.Business) (*catalog.Topology, error) {
	unlock, err := m.lock(ctx)
	defer unlock()
	return m.topology(b), err
}

func (m *Model) topology(b catalog.Business) *catalog.Topology {
	if t := m.topologies[b]; t != nil {
		return t
	}
	return &catalog.Topology{}
}
