// Package faults tests the faults that an agent must survive. One row of the list
// is one test with the built agent and real processes, or a test in the package
// that can be tested alone. Their outcomes are in docs/reference/faults.md.
package faults
