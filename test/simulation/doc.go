// Package simulation runs whole fleets in virtual time and causes faults: two
// dispatchers, two workers and three agents in one process, minutes of fleet
// time in a fraction of a second. A seed determines the faults of a fleet. The
// checker of test/cluster checks the history, with the same load and the same
// rules.
//
//	go test ./test/simulation                                   # 20 seconds of histories, and the deliberate defects
//	go test ./test/simulation -run TestHistories -seed 17 -v    # one of them; add -roles for the logs of all roles
//	make simulate SEEDS=100000                                  # the long form, one process for each processor
//
// # Real and modeled parts
//
// Each history runs in a bubble of [testing/synctest], in which time passes
// when every goroutine waits. These parts are real: the dispatchers (called
// through their HTTP handlers), the workers, the agents with their journals,
// NATS' client and server with JetStream, and the embedded task store, on files
// in memory. Streams are in memory as well, and the broker does not fail. A
// history takes about a third of a second of processor time, most of it in the
// roles.
//
// Hosts are modeled: processes are entries in a table, and control commands
// write their marks there. An engine of this package executes operations in
// place of [github.com/procfleet/procfleet/agent/operate.Engine], which observes
// processes through the kernel. The engine uses the state machine of
// agent/supervise, records its next action in the journal, and recovers with
// the same rules. So only test/faults and test/cluster find defects of the real
// engine.
//
// # Faults
//
//   - Messages: connections between a role and the broker delay, lose, duplicate
//     and reorder messages, block, and break. Messages of streams are lost, but
//     neither reordered nor duplicated: the broker does that itself when it
//     redelivers.
//   - Processes die at the points that roles name (Config.Reached, Config.Crash)
//     and at any other moment, and hosts lose power. Goroutines cannot be ended,
//     so a dead process loses its connections and its host. A dead agent also
//     loses its folder; the next agent gets a copy of the folder at that moment.
//   - The store is unavailable or slow, and loses replies to executed calls. It
//     fails over to a replica that lacks its last seconds, in which it confirmed
//     no write, as with --redis-wait-replicas. Its clock is set.
//   - Clocks of hosts are wrong by hours, or stop. Agents are copied together
//     with their hosts.
//
// Clocks of dispatchers and workers are correct, because these roles use only
// the store's clock and their own monotonic clock. The timestamps in an agent's
// messages come from the correct clock as well; the agent measures durations
// with its host's clocks.
//
// # Deliberate defects
//
// A simulation that finds nothing may be ineffective. The tests in
// broken_test.go cause defects deliberately: they change messages
// in transit, replies of the store, or limits of a worker, and run the same
// random histories until one violates a rule:
//
//   - A cloned agent executes commands in addition to its original.
//   - Agents judge recovered operations by the wrong clocks of their hosts.
//   - A step back of the store's clock blocks the sweep.
//   - A task without an entry in the sweep index never ends.
//   - The sweep is too slow.
//
// Some tens of histories suffice to find each; the tests permit 150.
//
// # Accuracy of a repeat
//
// The seed determines the load, the faults and their times, and the fault of the
// n-th message on each connection. It does not determine the order of
// goroutines that wake at the same moment, the order of maps and selects,
// identities (instances, incarnations, message ids), jitter of the roles, which
// uses the random numbers of the runtime, and the microseconds in task ids. So
// in a repeat a message may arrive a little earlier or later, with other
// consequences. In practice most runs with the same seed reach the same
// situation. Repeat a run with -count before you consider a defect fixed.
package simulation
