package dispatcher

import (
	"net/http"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// onlyOnce are headers that say who calls, for whom, and in what words. With
// two of a kind a server in front may have looked at the other one.
var onlyOnce = []string{
	"Authorization", "X-Bkapi-Authorization", "Bk-App-Code", "Bk-Username",
	"Bk_user", "Bk-User", "Http_blueking_supplier_id", "Http-Blueking-Supplier-Id", "Content-Type", requestIDHeader,
}

// refuseHeader refuses what can be read in two ways, and bodies that would have
// to be unpacked: a short one may become as long as its sender likes.
func refuseHeader(h http.Header) error {
	for _, name := range onlyOnce {
		if len(h[name]) > 1 {
			return &dialect.Error{Kind: dialect.Malformed, Field: "header " + name, Problem: "is there more than once"}
		}
	}
	for _, encoding := range h["Content-Encoding"] {
		if encoding != "" && encoding != "identity" {
			return &dialect.Error{Kind: dialect.Malformed, Field: "header Content-Encoding", Problem: "packed bodies are not taken; send it as it is"}
		}
	}
	return nil
}
