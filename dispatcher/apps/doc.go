// Package apps keeps the applications that may call a dispatcher: the file in
// which they stand, how their secrets are kept and checked, and what each of
// them may do.
package apps
