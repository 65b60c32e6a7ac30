//go:build !linux

package testenv

// WithoutProfile does nothing: only the tests of Linux agents run commands in login shells.
func WithoutProfile() {}
