package dialect

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// nativeSelection is what an operation selects in the catalogue, and in whose:
// the account belongs to the business that stands beside the operations.
type nativeSelection struct {
	procfleet.Selection
	Account string `json:"account"`
}

// selectionMembers are all that a selection may have.
var selectionMembers = []string{"processes", "name", "sets", "modules", "account"}

// selection reads what stands at field; nil if there is nothing. A filter that
// is empty, null or misspelt is a mistake: it must not become everything.
func selection(raw json.RawMessage, field string) (*nativeSelection, error) {
	if raw == nil || string(raw) == "null" {
		return nil, nil
	}
	var s nativeSelection
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, decodeError(err, field)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, decodeError(err, field)
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.ContainsFunc(selectionMembers, func(known string) bool { return strings.EqualFold(known, name) }) {
			return nil, invalid(field, "%.40q is unknown; use %s", name, strings.Join(selectionMembers, ", "))
		}
	}
	var filters struct{ Sets, Modules json.RawMessage }
	if err := json.Unmarshal(raw, &filters); err != nil {
		return nil, decodeError(err, field)
	}
	switch {
	case filters.Sets != nil && len(s.Sets) == 0:
		return nil, invalid(field+".sets", "is empty; leave it out for all sets")
	case filters.Modules != nil && len(s.Modules) == 0:
		return nil, invalid(field+".modules", "is empty; leave it out for all modules")
	}
	return &s, nil
}

// selecting is the business in whose catalogue a submission selects, as its
// namespace, which for a business of the default account is its id. There is
// one for all operations.
func selecting(business string, accounts []string) (string, error) {
	account := accounts[0]
	for _, other := range accounts {
		if other != account {
			return "", invalid("select.account", "is not the same in all operations; divide the request")
		}
	}
	if business == "" {
		return "", invalid("business", "is required with select: whose catalogue it is, for example 2")
	}
	b, err := catalog.ParseBusiness(business)
	switch {
	case err != nil || account == "" || account == b.Account:
	case b.Account != catalog.DefaultAccount:
		err = &procfleet.FieldError{Field: "select.account", Problem: "is not the account of the business; leave it out"}
	default:
		b.Account = account
		err = b.Validate()
	}
	if err != nil {
		return "", refused(err, same)
	}
	return b.Namespace(), nil
}
