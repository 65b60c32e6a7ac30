// Package cluster runs a whole procfleet in containers, causes faults under
// load, and checks their effects on the operations. It needs docker and root,
// so its tests have a build tag: make cluster-test.
//
// The fleet has three NATS servers with three replicas of each stream; a Redis
// master and a replica with three Sentinels, or a Redis Cluster of six nodes; two
// dispatchers; three workers; twelve agents in two cloud areas, the second behind a
// leaf node; 2,000 simulated agents. Dispatchers and workers wait for one Redis
// replica, in the scenarios with clocks and disks for two of two. Monotonic clocks
// are always correct. Connections are protected as in deploy/, except the HTTP of the
// dispatchers; all messages are signed.
//
// The load are tasks through both dispatchers and published submissions. One
// submission in six has no Idempotency-Key; the others are repeated, and some
// responses discarded. One task in twenty has 1,000 to 5,000 items; half of these are
// rollouts. Half of the submissions request a callback, whose receiver first rejects
// one in five.
package cluster
