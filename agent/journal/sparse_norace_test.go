//go:build !race

package journal

// sparse is which share of all damage is tried: one of so many.
const sparse = 1
