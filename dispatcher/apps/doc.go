// Package apps manages the applications that may call a dispatcher: it reads and writes
// the applications file, stores and verifies secrets, and defines the permissions of
// each application.
package apps
