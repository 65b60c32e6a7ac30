// Package apps manages the applications that may call a dispatcher: it reads and writes
// the applications file, stores and verifies secrets, and defines the permissions of
// each application.
package apps

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
)

// Actions that an application may be limited to besides the process operations.
const (
	// Registration covers registering, updating and unregistering processes, grouping
	// them, and binding agent ids to hosts.
	Registration = "registration"
	// Catalogue covers changes to process templates and topologies.
	Catalogue = "catalogue"
	// Output covers reading the output of processes.
	Output = "output"
)

// Reading is the action that every read-only call requires.
const Reading = string(procfleet.ActionStatus)

// Approval is the action of a caller that approves the stages of rollouts.
const Approval = "approve"

// Actions returns the names of all actions that an application can be limited to: the
// process operations, [Registration], [Catalogue], [Output] and [Approval].
func Actions() []string {
	var names []string
	for _, a := range procfleet.Actions() {
		names = append(names, string(a))
	}
	return append(names, Registration, Catalogue, Output, Approval)
}

// Application is a caller of the dispatcher, with its credentials and permissions.
type Application struct {
	Code string
	// Secret is the argon2id hash of the application's secret; see [Hash].
	Secret string
	// SigningKey is the HMAC key of the application's signatures; empty if the
	// application does not sign requests.
	SigningKey string
	Businesses Limit
	Actions    Limit
	// SkipUserAuth accepts the user that the application names without authenticating
	// that user.
	SkipUserAuth bool
}

// Maximum lengths, in bytes.
const (
	maxCode   = 64
	maxSecret = 256
)

// CheckCode returns an error if code is not a valid application code: 1 to 64 letters,
// digits, - and _. A dot is not allowed, because the first dot of a bearer token
// separates the code from the secret.
func CheckCode(code string) error {
	switch {
	case code == "":
		return errors.New("the application code is empty")
	case len(code) > maxCode:
		return fmt.Errorf("an application code has at most %d characters", maxCode)
	case strings.ContainsFunc(code, func(r rune) bool { return !letterOrDigit(r) && r != '-' && r != '_' }):
		return fmt.Errorf("%.70q is not a valid application code: only letters, digits, - and _ are allowed", code)
	}
	return nil
}

func letterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// CheckSecret returns an error if secret is not a valid secret or signing key: 1 to 256
// printable ASCII characters without spaces. The error does not contain the secret.
func CheckSecret(secret string) error {
	switch {
	case secret == "":
		return errors.New("the secret is empty")
	case len(secret) > maxSecret:
		return fmt.Errorf("a secret has at most %d bytes", maxSecret)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("a secret is sent in headers: only printable ASCII characters without spaces are allowed")
	}
	return nil
}

// Limit is the set of businesses or actions that an application may use. The zero Limit
// allows nothing.
type Limit struct {
	all  bool
	only []string
}

// NoLimit returns the Limit that allows every name.
func NoLimit() Limit { return Limit{all: true} }

// Everything stands for [NoLimit] in the file and on the command line.
const Everything = "*"

// ParseBusinesses converts business ids, or "*" alone, to a Limit. It returns an error
// for an empty list.
func ParseBusinesses(words []string) (Limit, error) { return parseLimit(words, checkBusiness) }

// ParseActions converts names of [Actions], or "*" alone, to a Limit. It returns an
// error for an empty list.
func ParseActions(words []string) (Limit, error) { return parseLimit(words, checkAction) }

func parseLimit(words []string, check func(string) error) (Limit, error) {
	if slices.Equal(words, []string{Everything}) {
		return NoLimit(), nil
	}
	if len(words) == 0 {
		return Limit{}, errors.New("is empty, so the application could do nothing; list names, or use * for all")
	}
	limit := Limit{}
	for _, word := range words {
		if word == Everything {
			return Limit{}, errors.New("* includes every name and must be the only entry")
		}
		if err := check(word); err != nil {
			return Limit{}, err
		}
		if !slices.Contains(limit.only, word) {
			limit.only = append(limit.only, word)
		}
	}
	return limit, nil
}

func checkBusiness(id string) error {
	switch {
	case strings.TrimSpace(id) == "":
		return errors.New("a business id is empty")
	case len(id) > procfleet.MaxKey:
		return fmt.Errorf("a business id is longer than %d bytes", procfleet.MaxKey)
	case strings.HasPrefix(id, setPrefix):
		return fmt.Errorf("%.70q is a set of businesses: only * covers sets", id)
	}
	return nil
}

func checkAction(name string) error {
	if slices.Contains(Actions(), name) {
		return nil
	}
	return fmt.Errorf("%.70q is not an action; the actions are %s, and * for all", name, strings.Join(Actions(), ", "))
}

// All reports whether the Limit allows every name.
func (l Limit) All() bool { return l.all }

// Allows reports whether the Limit allows one name.
func (l Limit) Allows(name string) bool { return l.all || slices.Contains(l.only, name) }

// Words returns the names that the Limit allows, or "*" if it allows all. It is the
// inverse of [ParseBusinesses] and [ParseActions].
func (l Limit) Words() []string {
	if l.all {
		return []string{Everything}
	}
	return l.only
}

func (l Limit) String() string { return strings.Join(l.Words(), ",") }

// setPrefix is the prefix of the name of a set of businesses.
const setPrefix = "biz_set:"

// Covers reports whether the application may act for a business. A call that names no
// business, or a set of businesses, requires permission for all businesses.
func (a *Application) Covers(business string) bool {
	if business == "" || strings.HasPrefix(business, setPrefix) {
		return a.Businesses.All()
	}
	return a.Businesses.Allows(business)
}

// Denied returns the actions, each once, that the application is not permitted to do.
func (a *Application) Denied(actions ...string) []string {
	var denied []string
	for _, action := range actions {
		if !a.Actions.Allows(action) && !slices.Contains(denied, action) {
			denied = append(denied, action)
		}
	}
	return denied
}
