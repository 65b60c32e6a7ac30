// Package templates is what edits make of the templates of a business and how
// they are searched, for every backend the same. It stores nothing.
//
// A backend reads the templates that a call edits, lets [Do] say what becomes
// of them, and writes that if, at the same moment, those that it read are as
// they were and every claim of the [Batch] is free.
package templates
