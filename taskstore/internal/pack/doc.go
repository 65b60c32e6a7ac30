// Package pack encodes chunks, results and item states for the task stores, so that
// every store writes the same bytes, truncates content at the same limits, and returns
// pages in the same order.
//
// Each item of a task has one state byte, a [Mark]. The mark alone decides whether a
// result is applied. Counters and pages are computed from marks.
package pack
