package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/catalog"
)

func decodeCMDBCreate(r *Request) (TemplateEdits, error) {
	b, err := cmdbBusiness(r, cmdbBadPath)
	if err != nil {
		return TemplateEdits{}, err
	}
	members, err := decodeCMDBBody(r)
	if err != nil {
		return TemplateEdits{}, err
	}
	set, err := cmdbValues(members, true)
	return TemplateEdits{Business: b, Edits: []catalog.Edit{{Set: set}}}, err
}

func cmdbCreated(_ *TemplateEdits, done TemplatesEdited, _ string) Reply {
	return Reply{Status: http.StatusOK, Body: cmdbEnvelope{Result: true, Data: "success", ProcessID: done.Edits[0].ID}}
}

// decodeCMDBUpdate reads the changes of the process in the path. It ignores
// bk_process_id in the body.
func decodeCMDBUpdate(r *Request) (TemplateEdits, error) {
	q, err := cmdbQuery(r, cmdbBadPath)
	if err != nil {
		return TemplateEdits{}, err
	}
	if q.ID < 1 { // 0 would create a process
		return TemplateEdits{}, noCMDBProcess(q.ID)
	}
	members, err := decodeCMDBBody(r)
	if err != nil {
		return TemplateEdits{}, err
	}
	delete(members, cmdbProcessID)
	set, err := cmdbValues(members, false)
	return TemplateEdits{Business: q.Business, Edits: []catalog.Edit{{ID: q.ID, Set: set}}}, err
}

func noCMDBProcess(id int64) *Error {
	return &Error{Kind: NotFound, Problem: fmt.Sprintf("process %d: %s", id, withCode(catalog.ErrNoTemplate.Error(), cmdbNotFound))}
}

// decodeCMDBBatch reads the changes of several processes. Unlike the published server,
// procfleet changes all of them or none.
func decodeCMDBBatch(r *Request) (TemplateEdits, error) {
	b, err := cmdbBusiness(r, cmdbBadPath)
	if err != nil {
		return TemplateEdits{}, err
	}
	members, err := decodeCMDBBody(r)
	if err != nil {
		return TemplateEdits{}, err
	}
	ids, err := cmdbBatchIDs(members[cmdbProcessID])
	if err != nil {
		return TemplateEdits{}, err
	}
	delete(members, cmdbProcessID)
	for _, id := range []string{"bk_func_id", "bk_process_name"} {
		if _, said := members[id]; said {
			return TemplateEdits{}, &Error{Kind: InvalidField, Code: cmdbInvalid, Field: id, Problem: "cannot be the same for several processes; update one at a time"}
		}
	}
	set, err := cmdbValues(members, false)
	if err != nil {
		return TemplateEdits{}, invalid("", "process %d: %s", ids[0], err.Error())
	}
	edits := TemplateEdits{Business: b}
	for _, id := range ids {
		edits.Edits = append(edits.Edits, catalog.Edit{ID: id, Set: set})
	}
	return edits, nil
}

// cmdbBatchIDs reads ids that are joined by commas, and returns them sorted and without
// duplicates.
func cmdbBatchIDs(raw json.RawMessage) ([]int64, error) {
	var joined *string
	if raw == nil || json.Unmarshal(raw, &joined) != nil || joined == nil {
		return nil, &Error{Kind: InvalidField, Code: cmdbNoIDs}
	}
	var ids []int64
	for text := range strings.SplitSeq(*joined, ",") {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, &Error{Kind: InvalidField, Code: cmdbBadPath, Field: cmdbProcessID, Problem: fmt.Sprintf("%.40q is not a number", text)}
		}
		if id < 1 {
			return nil, noCMDBProcess(id)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) > catalog.MaxEdits {
		return nil, &Error{
			Kind: InvalidField, Code: cmdbInvalid, Field: cmdbProcessID,
			Problem: fmt.Sprintf("names %d processes; update at most %d at a time", len(ids), catalog.MaxEdits),
		}
	}
	return ids, nil
}

func cmdbEdited(_ *TemplateEdits, done TemplatesEdited, _ string) Reply {
	return Reply{Status: http.StatusOK, Body: cmdbEnvelope{Result: true, Data: "success", Task: done.Task}}
}

// cmdbDeleted returns the same response whether or not the process existed.
func cmdbDeleted(*TemplateQuery, bool, string) Reply { return cmdbAnswer("success") }

// cmdbPropertyValue is the value of an attribute with the attribute's id and display
// name.
type cmdbPropertyValue struct {
	ID    string `json:"bk_property_id"`
	Name  string `json:"bk_property_name"`
	Value any    `json:"bk_property_value"`
}

func cmdbDetail(q *TemplateQuery, t *catalog.Template, _ string) (Reply, error) {
	if t == nil {
		return Reply{}, noCMDBProcess(q.ID)
	}
	values := []cmdbPropertyValue{{cmdbBizID, "业务ID", q.Business.ID}}
	for i := range cmdbAttributes {
		a := &cmdbAttributes[i]
		values = append(values, cmdbPropertyValue{a.id, a.name, t.Values[a.attribute]})
	}
	return cmdbAnswer(values), nil
}
