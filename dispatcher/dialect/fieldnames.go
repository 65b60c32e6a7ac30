package dialect

import (
	"regexp"
	"strings"
)

// Messages of agents and of the server name a field of a spec as the native API does, followed by
// the name in the published APIs: "control.stop (stop_cmd) is empty". Each API shows its own name.
var bothNames = regexp.MustCompile(`\b((?:control|alive)\.[a-z_]+) \(([a-z_]+(?:, [a-z_]+)*)\)`)

// nativeNames returns a message with the field names of the native API.
func nativeNames(message string) string { return replaceNames(message, "$1") }

func nativeWarnings(warnings []string) []string {
	if len(warnings) == 0 {
		return warnings
	}
	named := make([]string, len(warnings))
	for i, w := range warnings {
		named[i] = nativeNames(w)
	}
	return named
}

// publishedNames returns a message with the field names of the published APIs.
func publishedNames(message string) string { return replaceNames(message, "$2") }

func replaceNames(message, name string) string {
	if !strings.Contains(message, " (") {
		return message // most messages; a page has thousands
	}
	return bothNames.ReplaceAllString(message, name)
}
