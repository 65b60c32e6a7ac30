//go:build !linux

package local

import "fmt"

// onPath calls use with the path of a socket, or returns an error if the path is too long
// for a socket.
func onPath[T any](path string, use func(string) (T, error)) (result T, err error) {
	if len(path) > longestPath {
		return result, fmt.Errorf("%s has %d bytes, at most %d are allowed for a socket: choose a shorter data folder", path, len(path), longestPath)
	}
	return use(path)
}
