package catalog

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/procfleet/procfleet"
)

// DefaultAccount is the account in an installation with a single supplier.
const DefaultAccount = "0"

// MaxAccount is the maximum length of an account in bytes.
const MaxAccount = 64

// Business identifies a business of one supplier account. It owns templates and a
// topology. A business never has access to data of other accounts.
type Business struct {
	Account string // opaque text of up to MaxAccount bytes
	ID      int64  // 1 or more
}

// Validate returns a [procfleet.FieldError] for each invalid field.
func (b Business) Validate() error {
	switch {
	case b.ID < 1:
		return &procfleet.FieldError{Field: "business", Problem: fmt.Sprintf("%d is no id of a business: it is 1 or more", b.ID)}
	case b.Account == "" || len(b.Account) > MaxAccount || !utf8.ValidString(b.Account):
		return &procfleet.FieldError{Field: "account", Problem: fmt.Sprintf("is not a text of 1 to %d bytes", MaxAccount)}
	}
	return nil
}

// Namespace returns the namespace of the business's processes on hosts: the id,
// preceded by the account and a dot unless the account is [DefaultAccount].
func (b Business) Namespace() string {
	id := strconv.FormatInt(b.ID, 10)
	if b.Account == DefaultAccount {
		return id
	}
	return b.Account + "." + id
}

// ParseBusiness parses the result of [Business.Namespace]: "2", or "acme.2" for a
// business of another account than the default. The error is a [procfleet.FieldError].
func ParseBusiness(namespace string) (Business, error) {
	b := Business{Account: DefaultAccount}
	id := namespace
	if dot := strings.LastIndexByte(namespace, '.'); dot >= 0 {
		b.Account, id = namespace[:dot], namespace[dot+1:]
	}
	n, err := strconv.ParseInt(id, 10, 64)
	b.ID = n
	if err != nil || b.Validate() != nil || b.Namespace() != namespace {
		return Business{}, &procfleet.FieldError{Field: "business", Problem: fmt.Sprintf(
			"%.80q is not a business of the catalogue: it is a number of 1 or more, for example 2", namespace)}
	}
	return b, nil
}
