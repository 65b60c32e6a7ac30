package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/procfleet/procfleet/catalog"
)

// maxCMDBPage is the maximum page.limit. A search without a limit returns all processes.
const maxCMDBPage = 200

// cmdbSearch is the body of a search. Every member is optional.
type cmdbSearch struct {
	Page struct {
		Start int    `json:"start"`
		Limit int    `json:"limit"` // 0 returns all processes
		Sort  string `json:"sort"`
	} `json:"page"`
	Fields    []string                   `json:"fields"`
	Condition map[string]json.RawMessage `json:"condition"`
}

func decodeCMDBSearch(r *Request) (TemplateSearch, error) {
	b, err := cmdbBusiness(r, cmdbBadPath)
	if err != nil {
		return TemplateSearch{}, err
	}
	var params cmdbSearch
	if err := decodeNativeBody(r, &params); err != nil {
		return TemplateSearch{}, err
	}
	q := TemplateSearch{Business: b, Fields: params.Fields}
	if err := params.page(&q.Search); err != nil {
		return TemplateSearch{}, err
	}
	if q.Search.Conditions, err = params.conditions(); err != nil {
		return TemplateSearch{}, err
	}
	bounded := q.Search
	bounded.Limit = cmp.Or(bounded.Limit, maxCMDBPage)
	if err := bounded.Validate(); err != nil {
		return TemplateSearch{}, refused(err, func(field string) string { return field })
	}
	return q, nil
}

// page reads the requested page and its order. A limit above maxCMDBPage is rejected,
// not lowered: a caller that requests its next page at start+limit would miss processes.
func (p *cmdbSearch) page(s *catalog.Search) error {
	if p.Page.Start < 0 || p.Page.Start > maxStart {
		return invalid("page.start", "is not a number from 0 to %d", maxStart)
	}
	if p.Page.Limit < 0 || p.Page.Limit > maxCMDBPage {
		return invalid("page.limit", "is not a number from 1 to %d", maxCMDBPage)
	}
	s.Start, s.Limit = p.Page.Start, p.Page.Limit
	id, descending := strings.CutPrefix(p.Page.Sort, "-")
	switch id {
	case "", cmdbBizID, cmdbAccount: // all processes of a business have the same value
		return nil
	}
	attribute, known := cmdbSearchable(id)
	if !known || attribute == catalog.AttrModule {
		return invalid("page.sort", "%.80q is no attribute of a process, nor one behind a -", p.Page.Sort)
	}
	s.Sort, s.Descending = attribute, descending
	return nil
}

// cmdbSearchable returns the attribute of an id by which a search can select processes.
func cmdbSearchable(id string) (catalog.Attribute, bool) {
	switch id {
	case cmdbProcessID:
		return catalog.AttrID, true
	case "bk_module_name":
		return catalog.AttrModule, true
	case cmdbCreatedAt:
		return catalog.AttrCreatedAt, true
	case cmdbChangedAt:
		return catalog.AttrChangedAt, true
	}
	return cmdbAttributeOf(id)
}

// conditions reads the conditions of a search. It ignores conditions on the business and
// the account: those of the path apply.
func (p *cmdbSearch) conditions() ([]catalog.Condition, error) {
	var all []catalog.Condition
	for _, id := range slices.Sorted(maps.Keys(p.Condition)) {
		if id == cmdbBizID || id == cmdbAccount {
			continue
		}
		attribute, known := cmdbSearchable(id)
		if !known {
			return nil, invalid("condition", "%.80q is no attribute of a process", id)
		}
		found, err := cmdbConditions(attribute, p.Condition[id])
		if err != nil {
			return nil, invalid("condition."+id, "%s", err.Error())
		}
		all = append(all, found...)
	}
	return all, nil
}

// cmdbOperators are the MongoDB operators that a condition may use.
var cmdbOperators = map[string]catalog.Comparison{
	"$eq": catalog.Is, "$ne": catalog.IsNot, "$in": catalog.In, "$nin": catalog.NotIn,
	"$gt": catalog.More, "$gte": catalog.AtLeast, "$lt": catalog.Less, "$lte": catalog.AtMost,
}

// cmdbConditions reads the conditions of one attribute: a value, or an object of
// operators. A text without an operator matches names that contain it; of any other
// attribute it must be the whole value.
func cmdbConditions(attribute catalog.Attribute, raw json.RawMessage) ([]catalog.Condition, error) {
	if !isObject(raw) {
		v, err := cmdbOperand(attribute, raw)
		c := catalog.Condition{Attribute: attribute, Comparison: catalog.Is, Values: []catalog.Value{v}}
		if _, text := v.AsText(); text && attribute == catalog.AttrName {
			c.Comparison = catalog.Contains
		}
		return []catalog.Condition{c}, err
	}
	var operators map[string]json.RawMessage
	if err := json.Unmarshal(raw, &operators); err != nil {
		return nil, err
	}
	var all []catalog.Condition
	for _, operator := range slices.Sorted(maps.Keys(operators)) {
		comparison, known := cmdbOperators[operator]
		if !known {
			return nil, fmt.Errorf("%.40q is no operator; use one of %s", operator, strings.Join(slices.Sorted(maps.Keys(cmdbOperators)), ", "))
		}
		values, err := cmdbOperands(attribute, comparison, operators[operator])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", operator, err)
		}
		all = append(all, catalog.Condition{Attribute: attribute, Comparison: comparison, Values: values})
	}
	return all, nil
}

// cmdbOperands reads the values of an operator: a list for $in and $nin, otherwise one
// value.
func cmdbOperands(attribute catalog.Attribute, comparison catalog.Comparison, raw json.RawMessage) ([]catalog.Value, error) {
	list := []json.RawMessage{raw}
	if comparison == catalog.In || comparison == catalog.NotIn {
		list = nil
		if err := json.Unmarshal(raw, &list); err != nil || list == nil {
			return nil, fmt.Errorf("is not a list")
		}
	}
	values := make([]catalog.Value, len(list))
	for i := range list {
		var err error
		if values[i], err = cmdbOperand(attribute, list[i]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// cmdbOperand reads one value. A time is text in the format of the response, RFC 3339.
func cmdbOperand(attribute catalog.Attribute, raw json.RawMessage) (v catalog.Value, err error) {
	if err = v.UnmarshalJSON(raw); err != nil {
		return v, err
	}
	text, isText := v.AsText()
	if !isText || attribute != catalog.AttrCreatedAt && attribute != catalog.AttrChangedAt {
		return v, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return v, fmt.Errorf("%.40q is not a time such as 2026-01-31T12:00:00Z", text)
	}
	return catalog.Number(at.UnixMicro()), nil
}

// cmdbFoundAll streams the response that cmdbFound would return for all parts together.
func cmdbFoundAll(w io.Writer, q *TemplateSearch, total int, parts iter.Seq2[[]catalog.Template, error]) error {
	buf := append(rendered(`{"result":true,"bk_error_code":0,"bk_error_msg":"","data":`), '{').number("count", int64(total))
	buf = append(buf.name("info"), '[')
	separator := ""
	for part, err := range parts {
		if err != nil {
			return err
		}
		for i := range part {
			buf = append(buf, separator...)
			separator = ","
			if buf, err = appendJSON(buf, cmdbRow(q.Business, &part[i], q.Fields)); err != nil {
				return err
			}
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
		buf = buf[:0]
	}
	_, err := w.Write(append(buf, "]}}\n"...))
	return err
}

func cmdbFound(q *TemplateSearch, page []catalog.Template, total int, _ string) Reply {
	rows := make([]map[string]any, len(page))
	for i := range page {
		rows[i] = cmdbRow(q.Business, &page[i], q.Fields)
	}
	return cmdbAnswer(struct {
		Count int              `json:"count"`
		Info  []map[string]any `json:"info"`
	}{total, rows})
}
