//go:build !race

package simulation

// defaultSeeds is the number of histories of an ordinary test run.
const defaultSeeds = 40
