//go:build race

package simulation

// defaultSeeds is lower with the race detector, with which a history takes 30 times
// as long.
const defaultSeeds = 4
