//go:build !race

package journal

// sparse is the step over all possible damages: the test tries one of sparse damages.
const sparse = 1
