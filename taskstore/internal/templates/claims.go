package templates

import (
	"strconv"
	"strings"

	"github.com/procfleet/procfleet/catalog"
)

// Claims returns what no other template of the business may claim while t
// does: a text for each set of [catalog.Unique] of which no attribute is empty.
func Claims(t *catalog.Template) []string {
	var claims []string
	for i, set := range catalog.Unique() {
		if claim, ok := claimOf(i, set, t); ok {
			claims = append(claims, claim)
		}
	}
	return claims
}

// claimOf begins with the number of the set, and every value with its length,
// so that no two lists of values make the same text.
func claimOf(number int, set []catalog.Attribute, t *catalog.Template) (claim string, ok bool) {
	var b strings.Builder
	b.WriteString(strconv.Itoa(number))
	for _, a := range set {
		v := t.Values[a]
		if v.IsEmpty() {
			return "", false
		}
		text := v.String()
		b.WriteString(" " + strconv.Itoa(len(text)) + ":" + text)
	}
	return b.String(), true
}

// claimedBy returns the attributes that a claim is about.
func claimedBy(claim string) []catalog.Attribute {
	number, _, _ := strings.Cut(claim, " ")
	i, err := strconv.Atoi(number)
	if unique := catalog.Unique(); err == nil && i >= 0 && i < len(unique) {
		return unique[i]
	}
	return nil
}
