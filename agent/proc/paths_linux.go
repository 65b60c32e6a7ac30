package proc

import "path/filepath"

// maxPid is the largest pid that Linux ever hands out (PID_MAX_LIMIT on 64 bit).
const maxPid = 1 << 22

// programName is the name by which a program is known, from its path.
func programName(path string) string { return filepath.Base(path) }

// plainName is a program's name in the form of programName.
func plainName(name string) string { return name }

// plainPath is the form of a path in which two of them can be compared.
func plainPath(path string) string { return path }

// uidOf is the number of an account.
func uidOf(account Account) int { return int(account.UID) }

func systemPath(path string) bool {
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/snap", "/nix"} {
		if under(path, dir) && !under(path, "/usr/local") {
			return true
		}
	}
	return false
}
