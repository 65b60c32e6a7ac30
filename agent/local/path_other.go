//go:build !linux

package local

import "fmt"

// onPath calls use with the path of a socket if it is short enough.
func onPath[T any](path string, use func(string) (T, error)) (result T, err error) {
	if len(path) > longestPath {
		return result, fmt.Errorf("%s has %d bytes, a socket's path may have %d: choose a shorter data folder", path, len(path), longestPath)
	}
	return use(path)
}
