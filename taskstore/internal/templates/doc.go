// Package templates edits and searches the templates of a business, the same
// for every backend. It stores nothing.
//
// A backend reads the templates that a call edits, applies the edits with [Do],
// and writes the result if, in the same step, the templates that it read are
// unchanged and every claim of the [Batch] is free.
package templates
