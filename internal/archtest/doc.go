// Package archtest has only tests: they hold the rules of which package may
// import which. A new package needs a line in the table there, so that its
// place is a decision.
package archtest
