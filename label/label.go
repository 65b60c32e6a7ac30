// Package label defines the labels of hosts, by which operators select and filter hosts.
package label

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Bounds.
const (
	Max      = 64  // maximum number per host
	MaxKey   = 63  // maximum length of a key in bytes
	MaxValue = 255 // maximum length of a value in bytes
)

// Facts are the labels that every agent sets by itself.
func Facts() []string { return []string{"os", "arch", "kernel", "version"} }

// Check returns an error if key=value is no valid label: a key consists of lower-case
// letters, digits, '.', '_', '-' and '/', and a value of printable ASCII characters without
// ','.
func Check(key, value string) error {
	for _, r := range key {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789._-/", r) {
			return fmt.Errorf("label key %.80q: only a-z, 0-9, '.', '_', '-' and '/' are allowed", key)
		}
	}
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("label key %.80q must have 1 to %d bytes", key, MaxKey)
	}
	if len(value) > MaxValue || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' || r == ',' }) {
		return fmt.Errorf("value of label %s must have at most %d printable ASCII characters, and no ','", key, MaxValue)
	}
	return nil
}

// Parse splits key=value.
func Parse(text string) (key, value string, err error) {
	key, value, found := strings.Cut(text, "=")
	if !found {
		return "", "", fmt.Errorf("label %.80q is not key=value", text)
	}
	return key, value, Check(key, value)
}

// ParseOwn parses the labels that an operator gives to a host, each as key=value. Facts are
// refused, since the agent sets them, and more labels than fit beside them.
func ParseOwn(texts []string) (map[string]string, error) {
	labels := make(map[string]string, len(texts))
	for _, text := range texts {
		key, value, err := Parse(text)
		if err != nil {
			return nil, err
		}
		labels[key] = value
	}
	return labels, CheckOwn(labels)
}

// CheckOwn checks labels as ParseOwn does.
func CheckOwn(labels map[string]string) error {
	for key, value := range labels {
		if err := Check(key, value); err != nil {
			return err
		}
		if slices.Contains(Facts(), key) {
			return fmt.Errorf("label %s is a fact, which the agent sets itself", key)
		}
	}
	if most := Max - len(Facts()); len(labels) > most {
		return fmt.Errorf("%d labels, at most %d are allowed", len(labels), most)
	}
	return nil
}

// Filter matches hosts by one label: "key=value", "key!=value" or "key". A value is a
// pattern of [path.Match].
type Filter struct {
	Key, Pattern string
	Not          bool // no label of the key matches
	Any          bool // any value matches
}

// ParseFilter parses a filter.
func ParseFilter(text string) (f Filter, err error) {
	key, pattern, found := strings.Cut(text, "=")
	f = Filter{Key: strings.TrimSuffix(key, "!"), Pattern: pattern, Not: strings.HasSuffix(key, "!"), Any: !found}
	if f.Any && f.Not {
		return f, fmt.Errorf("label filter %.80q is not key=value, key!=value or key", text)
	}
	if err := Check(f.Key, f.Pattern); err != nil {
		return f, err
	}
	if _, err := path.Match(f.Pattern, ""); err != nil {
		return f, fmt.Errorf("value of label filter %.80q is no valid pattern", text)
	}
	return f, nil
}

// Matches reports whether the labels of a host match the filter.
func (f Filter) Matches(labels map[string]string) bool {
	value, found := labels[f.Key]
	if found && !f.Any {
		found, _ = path.Match(f.Pattern, value) // ParseFilter has checked the pattern
	}
	return found != f.Not
}
