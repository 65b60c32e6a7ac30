package rediscatalog

import (
	"fmt"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
)

// A process of a namespace is encoded as its name, a NUL, which no name contains, and
// its host, so that the bytes of members sort by name, then by host. A host is encoded
// as a letter for the number of digits of its cloud area, so that cloud areas sort as
// numbers, followed by [procfleet.Host.String]:
//
//	agent<NUL>a0:10.0.0.1
//	agent<NUL>b12:10.0.0.1
const nameEnd = "\x00"

func member(name string, h procfleet.Host) string { return name + nameEnd + hostMember(h) }

func hostMember(h procfleet.Host) string {
	text := h.String()
	digits := max(strings.IndexByte(text, ':'), 1) // a zero host has no digits, but is never stored
	return string(rune('a'+digits-1)) + text
}

// readMember parses what member returns.
func readMember(namespace, m string) (catalog.Process, error) {
	name, rest, found := strings.Cut(m, nameEnd)
	if !found {
		return catalog.Process{}, fmt.Errorf("%w: index of namespace %.80q has %.80q", redisconn.ErrDamaged, namespace, m)
	}
	host, err := readHostMember(rest)
	if err != nil {
		return catalog.Process{}, fmt.Errorf("index of namespace %.80q: %w", namespace, err)
	}
	return catalog.Process{Host: host, Namespace: namespace, Name: name}, nil
}

func readMembers(namespace string, members []any) ([]catalog.Process, error) {
	ps := make([]catalog.Process, len(members))
	for i, m := range members {
		text, _ := m.(string)
		var err error
		if ps[i], err = readMember(namespace, text); err != nil {
			return nil, err
		}
	}
	return ps, nil
}

func readHostMember(m string) (procfleet.Host, error) {
	if m == "" {
		return procfleet.Host{}, fmt.Errorf("%w: a host is empty", redisconn.ErrDamaged)
	}
	host, err := procfleet.ParseHost(m[1:])
	if err != nil {
		return procfleet.Host{}, fmt.Errorf("%w: %w", redisconn.ErrDamaged, err)
	}
	return host, nil
}

// specIDWidth is the length of a spec id, by which registrations refer to a stored
// spec: 16 bytes of a hash of the packed spec. A stored registration has the spec id,
// the time of the first registration, and the time at which the spec was requested.
const specIDWidth = 16

// registered is a parsed registration.
type registered struct {
	spec string // spec id
	at   string // time of the first registration in microseconds, as 16 digits
}

func readRegistered(value string) (registered, error) {
	if len(value) != specIDWidth+2*redisconn.StampWidth {
		return registered{}, fmt.Errorf("%w: registration of %d bytes", redisconn.ErrDamaged, len(value))
	}
	return registered{spec: value[:specIDWidth], at: value[specIDWidth : specIDWidth+redisconn.StampWidth]}, nil
}
