package proc

import "strings"

// windowsPlainPath is the form of a path of Windows in which two of them can be
// compared: neither case nor the kind of slash make a difference, and there are
// prefixes that only turn off limits.
func windowsPlainPath(path string) string {
	path = strings.ToLower(strings.ReplaceAll(path, `\`, "/"))
	for _, prefix := range []string{"//?/", "//./", "/??/"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			return strings.Replace(rest, "unc/", "//", 1)
		}
	}
	return path
}

// windowsProgramName is the name by which a program is known, from its path:
// neither case nor ".exe" are part of it.
func windowsProgramName(path string) string {
	path = windowsPlainPath(path)
	return strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], ".exe")
}
