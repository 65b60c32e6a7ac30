package local

import (
	"fmt"
	"os"
	"path/filepath"
)

// onPath calls use with the path of a socket. If the path is too long for a socket, it uses
// a shorter path through a descriptor of the folder.
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
