// Package simulation runs whole fleets in virtual time and breaks them: two
// dispatchers, two workers and three agents in one process, minutes of fleet
// time in a fraction of a second. What happens to a fleet is made from a seed;
// what was seen of it is judged by the checker of test/cluster, with the same
// load and the same rules.
//
//	go test ./test/simulation                                   # 40 histories, and the old defects
//	go test ./test/simulation -run TestHistories -seed 17 -v    # one of them; add -roles for the logs of all roles
//	make simulate SEEDS=100000                                  # the long form, one process for each processor
//
// # What is real
//
// Each history lives in a bubble of [testing/synctest], in which time passes
// when every goroutine waits. Real are the dispatchers (called through their
// HTTP handlers), the workers, the agents with their journals, the client and
// the server of NATS with JetStream, and the embedded task store, on files in
// memory. Streams are kept in memory as well, and the broker does not fail.
// A history costs about a third of a second of processor time, most of it spent
// by the roles themselves.
//
// Modeled are hosts: processes are entries in a table, control commands leave
// their marks there. An engine of this package carries out operations in the
// place of [github.com/procfleet/procfleet/agent/operate.Engine], whose looks at
// processes are calls of the kernel: it drives the machine of agent/supervise,
// notes in the journal what it is about to do, and recovers by the same rules.
// So defects of the engine itself are for test/faults and test/cluster.
//
// # What goes wrong
//
//   - Messages: connections between a role and the broker delay, lose, double and
//     reorder messages, stop passing anything, and break. Messages of streams are
//     lost, but not reordered or doubled on the way: the broker does that itself,
//     when it delivers again.
//   - Processes die at the points that roles name (Config.Reached, Config.Crash) and
//     at any moment, and hosts lose power. Goroutines cannot be ended; the process
//     loses its connections, its host, and for an agent its folder, of which the
//     next one gets a copy as the disk was then.
//   - The store is unavailable, is slow, loses answers to calls that it carried
//     out, fails over to a replica that lacks its last seconds (of which nothing
//     was confirmed, as with --redis-wait-replicas), and has its clock set.
//   - Clocks of hosts are off by hours, and stand still. Agents are copied together
//     with their hosts.
//
// Clocks of dispatchers and workers are right: the two time everything by the
// store's clock and their own monotonic one. The timestamps that an agent puts
// into its messages come from the true clock as well; by its host's clocks it
// judges what has passed.
//
// # The old defects
//
// A simulation that finds nothing may be blind. The tests in broken_test.go
// put defects back that procfleet once had, by changing messages on their way,
// answers of the store, or limits of a worker, and run the same random
// histories until a rule is broken:
//
//   - A cloned agent takes commands beside the one that it is a copy of.
//   - Agents judge recovered operations by the wrong clocks of their hosts.
//   - A step back of the store's clock stalls the sweep.
//   - A task without an entry in the sweep index never ends.
//   - The sweep does not keep up.
//
// Each is found within some tens of histories; the tests allow 150.
//
// # How near a replay comes
//
// The seed decides the load, the faults and their times, and the fate of the
// n-th message on each connection. Not decided are the order in which
// goroutines run that wake at the same moment, the order of maps and selects,
// identities (instances, incarnations, message ids), jitter of the roles, which
// is drawn from the runtime's random numbers, and the microseconds in task ids.
// So a message may come a little earlier or later in a replay, and all that
// follows may differ. In practice the same seed meets the same situation in
// most runs; repeat a replay with -count before you call a defect gone.
package simulation
