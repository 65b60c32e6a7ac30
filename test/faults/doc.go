// Package faults works through the list of faults that a host agent must
// survive: one row of the list is one test against the built agent and real
// processes, or stands in the package where what it is about can be tested
// alone. docs/fault-matrix.md is made from their outcomes.
package faults
