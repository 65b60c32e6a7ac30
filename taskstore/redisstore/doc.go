// Package redisstore stores tasks and the catalog of managed processes in Redis 6.2 or
// later: a single server, a server with replicas under Sentinel, or a cluster. Redis
// must run with appendonly persistence and maxmemory-policy noeviction.
//
// # Layout
//
// Every key begins with a prefix, "pf:" by default. All keys of a task have its id as
// hash tag, so a task is in one slot, and a script changes it atomically:
//
//	{<id>}:head         hash: state, times, counters by state (n:<mark>), and for each
//	                    chunk k, as far as delivery has progressed: sequence:<k>, its
//	                    position in the stream; begun:<k>; done:<k>
//	{<id>}:marks        string with one byte per item: the state of the item and whether
//	                    an agent or the server determined it; it decides whether a result
//	                    applies
//	{<id>}:chunk:<k>    the packed items of a chunk, written once
//	{<id>}:results:<n>  hash with the packed results of 1000 items from item n × 1000
//	{<id>}:writer       the maker that writes the chunks of a big task, until the head exists
//
// A task of 100,000 items has about 400 keys when it is created. An item has no field
// until it has a result. The store never reads a big key as a whole: it reads marks in
// windows and results by field.
//
// Keys that belong to several tasks, and to agents:
//
//	{index}:clock              the last number that was allotted
//	{index}:tasks              sorted set of task numbers, for lists
//	{index}:expiries           sorted set of the same numbers, by expiry
//	{index}:sweep:<shard>      sorted set of numbers, by the next visit of the sweep
//	{index}:told:<shard>       only in a cluster: sorted set of numbers, by the time at which
//	                           the completion of their tasks was notified
//	{index}:servers            only in a cluster: hash from shard to a hash of the masters' run ids
//	request:<hash>             idempotency key of an application: the number of its task
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
// Keys of the catalog. <h> is a hash of the namespace or the business. A process is
// encoded as its name and its host (see [member]):
//
//	{namespace:<h>}:registrations  hash from process to the id of its spec, the time of registration,
//	                               and the time at which the spec was requested
//	{namespace:<h>}:specs          hash from id to spec, stored once for all hosts
//	{namespace:<h>}:uses           hash from spec id to the number of its registrations; a spec
//	                               without registrations is deleted
//	{namespace:<h>}:index          sorted set, by bytes, of the registered or reported processes
//	{namespace:<h>}:doubts         hash from process with a dirty mark to the token of the mark
//	{namespace:<h>}:answer:<token> for one minute: the reply to a change, for a repeated call
//	reports:<cloud>:<shard>        hash from address to the last report of its agent
//	groups:<host>                  hash from namespace to its process groups on the host
//	{freezes}:all                  hash from scope (see [freezeMember]) to the end of the freeze and its note
//	{freezes}:order                sorted set, by bytes, of the same scopes
//	{freezes}:ends                 sorted set of the same scopes, by the end of the freeze
//	{freezes}:answer:<token>       for one minute: the reply to a change, for a repeated call
//	template-ids                   the last template id, of all businesses
//	{business:<h>}:templates       hash from id to the packed template
//	{business:<h>}:revisions       sorted set of the same ids, by revision
//	{business:<h>}:deleted         sorted set of deleted ids, by revision, as far back as the writes
//	{business:<h>}:claims          hash from claim, which only one template may have, to the template's id
//	{business:<h>}:writes          sorted set of the tokens of the last writes, by revision
//	{business:<h>}:topology        hash: the packed topology, its version, and its unique mark
//
// With [Options.WaitReplicas], each key after whose write the store waited has an empty
// companion for one minute. Its name ends in :wait or is wait:{<key>}.
//
// Of the catalog's keys only freezes, reports and stored replies expire. Bound agent ids
// and the clock never expire. Every other key gets its expiry in the script that creates
// it: the keys of a task expire with the task, an index expires with its last task or up
// to a minute later, and presence keys expire with the last remembered agent. A script
// that finds no head writes nothing, so an expired task never reappears in parts.
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
// Every call is idempotent, so the store repeats a call whose reply was lost. After
// [Options.Patience] it returns [taskstore.ErrUnavailable].
//
// Reports are in other slots than the index of their namespaces, so that the reports of
// a big cloud area are distributed. A report that names the same processes as the
// previous one does not access the index. A report that names other processes is stored
// in three steps: set dirty marks on these processes, write the report, settle the marks.
// If the writer is interrupted, the marks remain until the next read of a page settles
// them. See [touchScript].
//
// # Losses in a fail-over
//
// Redis replicates a write after it has replied. When a replica takes over, the last
// writes of the old server may be missing: a task that was just accepted, a rejection, or
// results. With [Options.WaitReplicas] the store confirms a creation (including index
// entry and idempotency key), a rejection or a result only when that many replicas have
// it. It is then lost only if these replicas are lost, or if another replica is promoted.
// The same applies to registrations, groups, freezes, templates and topologies. Reports
// do not wait, because the next report of a host is complete. If the index loses
// processes of a report that was not lost, the host's reports enter them again within
// about an hour.
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
