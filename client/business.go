package client

import (
	"net/url"
	"strconv"
)

// Business is whose processes and modules are meant.
type Business struct {
	ID int64
	// Account is the supplier's; empty is "0".
	Account string
}

// path is the business's own below a prefix, with what is below that, and with
// what else is asked in its query.
func (b Business) path(prefix, below string, query url.Values) string {
	path := prefix + "/" + strconv.FormatInt(b.ID, 10) + below
	if query == nil {
		query = url.Values{}
	}
	if b.Account != "" {
		query.Set("account", b.Account)
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}
