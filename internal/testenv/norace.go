//go:build !race

package testenv

// raceEnabled is whether the race detector watches this test.
const raceEnabled = false
