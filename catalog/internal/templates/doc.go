// Package templates edits and searches the templates of a business in the same way for
// every store. It stores nothing.
//
// A store reads the templates that a call edits, applies the edits with [Do], and
// writes the result. In the same step it must verify that the templates are unchanged
// and that every claim of the [Batch] is free.
package templates
