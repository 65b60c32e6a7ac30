//go:build race

package journal

// sparse is which share of all damage is tried: one of so many. Under the race
// detector each try takes ten times as long, and shows it the same accesses. It
// is prime, so that every bit of a byte has its turn.
const sparse = 23
