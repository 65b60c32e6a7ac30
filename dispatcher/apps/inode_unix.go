//go:build unix

package apps

import (
	"os"
	"syscall"
)

func inodeOf(info os.FileInfo) uint64 {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return sys.Ino
	}
	return 0
}
