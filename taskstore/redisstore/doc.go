// Package redisstore stores tasks, presences of agents and bound agent ids in Redis, over
// a connection of package redisconn.
//
// # Layout
//
// Every key begins with a prefix, "pf:" by default. All keys of a task have its id as
// hash tag, so a task is in one slot, and a script changes it atomically:
//
//	{<id>}:head         hash: state, times, counters by state (n:<mark>), and for each
//	                    chunk k, as far as delivery has progressed: sequence:<k>, its
//	                    position in the stream; begun:<k>; done:<k>; cancels:<k>, the
//	                    cancels of its items that are to be carried out, one per line.
//	                    transition:<n>, the transition n of the task, from 1.
//	                    Of a rollout: release, its progress; and for each chunk units:<k>,
//	                    which items begin a unit; zone:<k>, if it has one; granted:<k>, the
//	                    number of released items; grants:<k>, the releases, one per line
//	{<id>}:marks        string with one byte per item: the state of the item and whether
//	                    an agent or the server determined it; it decides whether a result
//	                    applies
//	{<id>}:chunk:<k>    the packed items of a chunk, written once
//	{<id>}:previous:<k> only of a rollout: hash from the first item of a release to the packed
//	                    specs that its processes had before
//	{<id>}:results:<n>  hash with the packed results of 1000 items from item n × 1000
//	{<id>}:writer       the maker that writes the chunks of a big task, until the head exists
//
// A task of 100,000 items has about 400 keys when it is created. An item has no field
// until it has a result. The store never reads a big key as a whole: it reads marks in
// windows and results by field.
//
// Keys that belong to several tasks, and to agents:
//
//	{index}:format             the version of the layout
//	{index}:clock              the last number that was allotted
//	{index}:tasks              sorted set of task numbers, for lists
//	{index}:expiries           sorted set of the same numbers, by expiry
//	{index}:sweep:<shard>      sorted set of numbers, by the next visit of the sweep
//	{index}:notified:<shard>   only in a cluster: sorted set of numbers, by the time at which
//	                           the completion of their tasks was notified
//	{index}:servers            only in a cluster: hash from shard to a hash of the masters' run ids
//	request:<hash>             idempotency key of an application: the number of its task
//	undo:<hash>                the same of a task that reverts another one
//	lease:<name>               holder of a lease
//	clouds                     sorted set of cloud areas, by the last announcement of an agent
//	{presence:<cloud>}:hosts   hash from address to the announcement of its agent, live or not
//	{presence:<cloud>}:live    sorted set of addresses, by the end of their presence
//	{presence:<cloud>}:order   sorted set of the same addresses, by their text
//	{presence:<cloud>}:agents  hash from agent id to address of the same hosts
//	{presence:<cloud>}:gone    sorted set of addresses whose presence ended, by that time
//	{presence:<cloud>}:bound   hash from agent id to address, as callers have bound them
//	{presence:<cloud>}:names   hash from address to the list of its bound agent ids
//	bound                      set of cloud areas that have bound agent ids
//
// Bound agent ids, the format and the clock never expire. Every other key gets its expiry in the
// script that creates it: the keys of a task expire with the task, an index expires with
// its last task or up to a minute later, and presence keys expire with the last
// remembered agent. A script that finds no head writes nothing, so an expired task never
// reappears in parts.
//
// # Order of writes
//
// Creating a task has four steps: allot the number and, with an idempotency key, make
// the key point to it; enter the number into the indexes; write the chunks; write the
// head. Without the head there is no task. If a dispatcher crashes before that, its keys
// are used by the repeated request, removed by the sweep, or expire.
//
// The sweep removes numbers without a task. Therefore the head is written only while the
// first visit of its number is certainly in the future, and the sweep does not remove a
// visit that was scheduled after it read the index. A repeated request enters the number
// into the indexes before and after it writes the task.
//
// # Losses in a fail-over
//
// Redis replicates a write after it has replied. When a replica takes over, the last
// writes of the old server may be missing: a task that was just accepted, a rejection, or
// results. With [redisconn.Options.WaitReplicas] the store confirms a creation
// (including index entry and idempotency key), a rejection or a result only when that
// many replicas have it. It is then lost only if these replicas are lost, or if another
// replica is promoted.
//
// Begin, Delivered, Dispatched, positions in the stream, visits and announcements do not
// wait, because losing one of them only repeats work: a chunk is delivered again to
// agents that remember it, or is published again, or an agent announces itself again.
// Undone waits, because its chunks are published: a task that no replica has could run,
// be lost, and be submitted again by its caller, who received an error. One loss remains
// possible: if a Begin is lost and the task is then rejected although an agent has begun
// it, the results are dropped.
//
// In a cluster the index and a task are on different servers. The server of the task may
// lose its last results after the completion of the task was notified. Therefore the
// index of a cluster remembers notified tasks for a minute, and the sweep visits them if
// a master was replaced or restarted in that time. A single master has both, and its
// replicas receive the writes in order, so they never have the notification without the
// results.
//
// Numbers do not repeat after a fail-over. If the clock key lost its last value, it
// continues from the current time, and every store sends the highest number that it has
// received. A number can be allotted twice only if the server's clock is behind and the
// dispatcher has not received a number yet. If the first task still exists, the
// dispatcher detects it and uses the next number.
//
// In a cluster each server's clock decides the deadlines of the tasks on that server, and
// stamps the announcements on it. [Store.Now] is the time of the server that has the
// clock key. Synchronize the clocks of all servers with NTP.
package redisstore
