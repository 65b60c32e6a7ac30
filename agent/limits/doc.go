// Package limits decides when a process uses more of its host than it may, and
// which process of a group has to go for the others.
//
// A [Judge] is told one [Reading] of all process trees after another and finds
// at most one [Breach] at a time. It has no clock and looks at nothing itself;
// it never acts either. It imports nothing of ours.
//
// Three rules keep it from acting on what passes: CPU counts as a mean over a
// window and memory by several readings in a row, a process is left alone while
// it warms up, and whatever makes readings incomparable (another process, a gap,
// a clock that went back) begins anew.
package limits
