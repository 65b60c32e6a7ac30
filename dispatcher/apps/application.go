package apps

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/procfleet/procfleet"
)

// Actions that are no operations on processes.
const (
	// Registration is to register, update and unregister processes, to group
	// them, and to say under which agent ids hosts are known.
	Registration = "registration"
	// Catalogue is to change the catalogue of processes.
	Catalogue = "catalogue"
)

// Reading is the action that everything needs which only looks.
const Reading = string(procfleet.ActionStatus)

// Actions returns every action to which an application can be limited.
func Actions() []string {
	var names []string
	for _, a := range procfleet.Actions() {
		names = append(names, string(a))
	}
	return append(names, Registration, Catalogue)
}

// Application is who may call, and what for.
type Application struct {
	Code string
	// Secret is the hash of its secret; see [Hash].
	Secret string
	// SigningKey is what its signatures are made with; empty if it cannot sign.
	SigningKey string
	Businesses Limit
	Actions    Limit
	// SkipUserAuth believes it whom it calls for.
	SkipUserAuth bool
}

// Bounds of what an application is made of, in bytes.
const (
	maxCode   = 64
	maxSecret = 256
)

// CheckCode says what is wrong with an application's code. A code has no dot:
// in a bearer token the first one ends it.
func CheckCode(code string) error {
	switch {
	case code == "":
		return errors.New("the code of an application is empty")
	case len(code) > maxCode:
		return fmt.Errorf("the code of an application has at most %d characters", maxCode)
	case strings.ContainsFunc(code, func(r rune) bool { return !letterOrDigit(r) && r != '-' && r != '_' }):
		return fmt.Errorf("%.70q is no code of an application: it has letters, digits, - and _ only", code)
	}
	return nil
}

func letterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// CheckSecret says what is wrong with a secret, or with a signing key, without
// showing it.
func CheckSecret(secret string) error {
	switch {
	case secret == "":
		return errors.New("a secret is not empty")
	case len(secret) > maxSecret:
		return fmt.Errorf("a secret has at most %d bytes", maxSecret)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("a secret has printable ASCII characters without spaces only: it is sent in headers")
	}
	return nil
}

// Limit is what an application is limited to; the zero Limit lets nothing pass.
type Limit struct {
	all  bool
	only []string
}

// NoLimit lets everything pass.
func NoLimit() Limit { return Limit{all: true} }

// Everything is how a Limit that lets everything pass is written.
const Everything = "*"

// ParseBusinesses reads ids of businesses, or "*" alone.
func ParseBusinesses(words []string) (Limit, error) { return parseLimit(words, checkBusiness) }

// ParseActions reads names of actions, or "*" alone.
func ParseActions(words []string) (Limit, error) { return parseLimit(words, checkAction) }

func parseLimit(words []string, check func(string) error) (Limit, error) {
	if slices.Equal(words, []string{Everything}) {
		return NoLimit(), nil
	}
	if len(words) == 0 {
		return Limit{}, errors.New("names nothing, so that the application could do nothing: give names, or * for everything")
	}
	limit := Limit{}
	for _, word := range words {
		if word == Everything {
			return Limit{}, errors.New("* stands alone: it is everything")
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
		return errors.New("an id of a business is empty")
	case len(id) > procfleet.MaxKey:
		return fmt.Errorf("an id of a business is longer than %d bytes", procfleet.MaxKey)
	case strings.HasPrefix(id, setPrefix):
		return fmt.Errorf("%.70q is a set of businesses: only * covers sets", id)
	}
	return nil
}

func checkAction(name string) error {
	if slices.Contains(Actions(), name) {
		return nil
	}
	return fmt.Errorf("%.70q is no action: there are %s, and * for all", name, strings.Join(Actions(), ", "))
}

// All reports whether everything passes.
func (l Limit) All() bool { return l.all }

// Allows reports whether one name passes.
func (l Limit) Allows(name string) bool { return l.all || slices.Contains(l.only, name) }

// Words is the Limit as it is written.
func (l Limit) Words() []string {
	if l.all {
		return []string{Everything}
	}
	return l.only
}

func (l Limit) String() string { return strings.Join(l.Words(), ",") }

// setPrefix begins the name of a set of businesses.
const setPrefix = "biz_set:"

// Covers reports whether an application may act for a business. Calls that are
// for no business, and those for a set of them, need one that may act for all.
func (a *Application) Covers(business string) bool {
	if business == "" || strings.HasPrefix(business, setPrefix) {
		return a.Businesses.All()
	}
	return a.Businesses.Allows(business)
}

// Denied returns those of the actions that the application must not do.
func (a *Application) Denied(actions ...string) []string {
	var denied []string
	for _, action := range actions {
		if !a.Actions.Allows(action) && !slices.Contains(denied, action) {
			denied = append(denied, action)
		}
	}
	return denied
}
