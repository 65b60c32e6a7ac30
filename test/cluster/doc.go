// Package cluster runs a whole procfleet in containers, causes faults under
// load, and checks their effects on the operations. It needs docker and root,
// so its tests have a build tag: make cluster-test.
package cluster
