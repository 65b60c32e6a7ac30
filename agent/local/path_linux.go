package local

import (
	"fmt"
	"os"
	"path/filepath"
)

// onPath calls use with the path of a socket, or with a shorter path through its open
// folder if it is too long.
func onPath[T any](path string, use func(string) (T, error)) (result T, err error) {
	if len(path) <= longestPath {
		return use(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return result, err
	}
	defer dir.Close()
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
