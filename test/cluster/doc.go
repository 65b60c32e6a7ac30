// Package cluster runs a whole procfleet in containers, breaks it while
// operations run all the time, and has a checker find out what that did to
// them. It needs docker and root, so it only runs with the build tag:
// make cluster-test.
package cluster
