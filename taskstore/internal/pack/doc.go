// Package pack is how the task stores write chunks, results, item states,
// specs, reports, groups and topologies down, so that every backend keeps the
// same bytes, cuts content at the same bounds and pages in the same order.
//
// A task's items have one state byte each, a [Mark]; it alone decides whether
// a result is applied, and it is what counters and pages are made from.
package pack
