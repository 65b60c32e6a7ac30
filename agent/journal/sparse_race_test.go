//go:build race

package journal

// sparse is the step over all possible damages: the test tries one of sparse damages. With the race
// detector each one takes ten times as long, and has the same memory accesses. sparse is prime, so that
// the tests damage every bit position of a byte.
const sparse = 23
