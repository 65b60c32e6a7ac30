package boltcatalog

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/pack"
	"github.com/procfleet/procfleet/catalog/internal/templates"
	"github.com/procfleet/procfleet/internal/boltdb"
)

// templateBook accesses the templates of one business in a transaction.
type templateBook struct {
	*tx
	of       catalog.Business
	business []byte // key of the business
}

func (t *tx) templateBook(of catalog.Business) templateBook {
	return templateBook{tx: t, of: of, business: businessKey(of)}
}

// key returns the key of an object of the business.
func (b templateBook) key(end []byte) []byte { return append(slices.Clip(b.business), end...) }

func (b templateBook) templateKey(id int64) []byte { return b.key(boltdb.Number8(uint64(id))) }

func (b templateBook) claimKey(text string) []byte { return b.key(boltdb.Digest(text)) }

// template reads a template; nil if it does not exist.
func (b templateBook) template(id int64) (*catalog.Template, error) {
	raw := b.Bucket(bucketTemplates).Get(b.templateKey(id))
	if raw == nil {
		return nil, nil
	}
	return pack.ReadTemplate(string(raw))
}

func (b templateBook) templates(ids []int64) ([]*catalog.Template, error) {
	all := make([]*catalog.Template, len(ids))
	for i, id := range ids {
		var err error
		if all[i], err = b.template(id); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// revision returns the number of changes of the business's templates.
func (b templateBook) revision() uint64 {
	raw := b.Bucket(bucketRevisions).Get(b.business)
	if raw == nil {
		return 0
	}
	return binary.BigEndian.Uint64(raw)
}

func (b templateBook) nextRevision() (uint64, error) {
	next := b.revision() + 1
	return next, b.Bucket(bucketRevisions).Put(b.business, boltdb.Number8(next))
}

// claimant returns the id of the template that has a claim, or 0.
func (b templateBook) claimant(text string) int64 {
	raw := b.Bucket(bucketClaims).Get(b.claimKey(text))
	if raw == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

// do computes the result of edits and writes nothing. lastID is the last template id
// after the edits.
func (b templateBook) do(edits []catalog.Edit) (batch *templates.Batch, lastID uint64, err error) {
	ids := make([]int64, len(edits))
	for i, e := range edits {
		ids[i] = e.ID // 0 for a new template, which no template has
	}
	old, err := b.templates(ids)
	if err != nil {
		return nil, 0, err
	}
	lastID = b.Bucket(bucketTemplates).Sequence()
	newID := func() int64 { lastID++; return int64(lastID) }
	if batch, err = templates.Do(edits, old, newID, b.Now); err != nil {
		return nil, 0, err
	}
	for _, c := range batch.Claimed {
		if by := b.claimant(c.Text); by != 0 && !c.Moved {
			return nil, 0, batch.Taken(c, by)
		}
	}
	return batch, lastID, nil
}

func (b templateBook) write(batch *templates.Batch, lastID uint64) error {
	if err := b.Bucket(bucketTemplates).SetSequence(lastID); err != nil {
		return err
	}
	if err := b.release(batch.Released); err != nil {
		return err
	}
	for _, c := range batch.Claimed {
		id := boltdb.Number8(uint64(batch.Templates[c.Edit].ID))
		if err := b.Bucket(bucketClaims).Put(b.claimKey(c.Text), id); err != nil {
			return err
		}
	}
	for i := range batch.Templates {
		template := &batch.Templates[i]
		if err := b.Bucket(bucketTemplates).Put(b.templateKey(template.ID), pack.Template(template)); err != nil {
			return err
		}
	}
	return nil
}

func (b templateBook) release(claims []string) error {
	for _, text := range claims {
		if err := b.Bucket(bucketClaims).Delete(b.claimKey(text)); err != nil {
			return err
		}
	}
	return nil
}

func (b templateBook) remove(template *catalog.Template) error {
	if err := b.release(templates.Claims(template)); err != nil {
		return err
	}
	return b.Bucket(bucketTemplates).Delete(b.templateKey(template.ID))
}

// EditTemplates applies all edits in one transaction, or none.
func (s *Catalog) EditTemplates(ctx context.Context, business catalog.Business, edits []catalog.Edit) ([]catalog.Edited, error) {
	if err := business.Validate(); err != nil {
		return nil, fmt.Errorf("edit processes: %w", err)
	}
	if err := catalog.ValidateEdits(edits); err != nil {
		return nil, err
	}
	if len(edits) == 0 {
		return nil, ctx.Err()
	}
	edits = cloneEdits(edits)
	return update(ctx, s, func(t *tx) ([]catalog.Edited, error) {
		b := t.templateBook(business)
		batch, lastID, err := b.do(edits)
		if err != nil {
			return nil, err
		}
		if err := b.write(batch, lastID); err != nil {
			return nil, err
		}
		return batch.Done, s.changed(b, templateChange{changed: batch.Templates})
	})
}

// cloneEdits copies the edits, so that the caller may change its arguments while update
// still runs.
func cloneEdits(edits []catalog.Edit) []catalog.Edit {
	edits = slices.Clone(edits)
	for i := range edits {
		e := &edits[i]
		e.Set, e.Bind, e.Unbind = maps.Clone(e.Set), slices.Clone(e.Bind), slices.Clone(e.Unbind)
	}
	return edits
}

// DeleteTemplate deletes a template that is bound to no module. It reports whether the
// template existed.
func (s *Catalog) DeleteTemplate(ctx context.Context, business catalog.Business, id int64) (bool, error) {
	if business.Validate() != nil {
		return false, ctx.Err()
	}
	return update(ctx, s, func(t *tx) (bool, error) {
		b := t.templateBook(business)
		template, err := b.template(id)
		if err != nil || template == nil {
			return false, err
		}
		if len(template.Modules) > 0 {
			return false, catalog.ErrBound
		}
		if err := b.remove(template); err != nil {
			return false, err
		}
		return true, s.changed(b, templateChange{removed: []int64{id}})
	})
}

// Templates returns the template of each id, in order; nil if it does not exist.
func (s *Catalog) Templates(ctx context.Context, business catalog.Business, ids []int64) ([]*catalog.Template, error) {
	if business.Validate() != nil {
		return make([]*catalog.Template, len(ids)), ctx.Err()
	}
	return view(ctx, s, func(t *tx) ([]*catalog.Template, error) { return t.templateBook(business).templates(ids) })
}
