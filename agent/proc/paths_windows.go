package proc

import (
	"math"

	"golang.org/x/sys/windows"
)

// maxPid is the largest number that a pid can be here.
const maxPid = math.MaxInt32

func programName(path string) string { return windowsProgramName(path) }

func plainName(name string) string { return windowsProgramName(name) }

func plainPath(path string) string { return windowsPlainPath(path) }

// uidOf says that accounts have no numbers.
func uidOf(Account) int { return -1 }

// systemPath reports whether a path lies in the folder of Windows itself, where
// services work that care for no folder.
func systemPath(path string) bool {
	dir, err := windows.GetSystemWindowsDirectory()
	return err == nil && under(path, dir)
}
