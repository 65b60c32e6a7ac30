// Package redisstore keeps tasks and the catalog of managed processes in
// Redis: one server, a server with replicas under Sentinel, or a cluster;
// version 6.2 or later, with appendonly persistence and maxmemory-policy
// noeviction.
//
// # Layout
//
// Every key begins with the prefix, "pf:" by default. All keys of a task have
// its id as hash tag, so a task is one slot and a script on it is one step:
//
//	{<id>}:head         hash: state, times, counters by state (n:<mark>), and for
//	                    each chunk k as far as it got: sequence:<k> in the
//	                    stream, begun:<k>, done:<k>
//	{<id>}:marks        string, one byte for each item: its state and whose word
//	                    that is; it decides whether a result applies
//	{<id>}:chunk:<k>    the packed items of a chunk, written once
//	{<id>}:results:<n>  hash, the packed results of items n × 1000 and up
//	{<id>}:writer       the maker that writes the chunks of a big task, until its head exists
//
// A task of 100,000 items is some 400 keys when it is made and has no field for
// an item until that item has a result. Nothing reads a big key whole: marks
// are read in windows, results by field.
//
// What belongs to no single task:
//
//	{index}:clock              the last number that was allotted
//	{index}:tasks              sorted set of numbers, for lists
//	{index}:expiries           sorted set of the same numbers by when they expire
//	{index}:sweep:<shard>      sorted set of numbers by when the sweep visits them
//	{index}:told:<shard>       in a cluster: sorted set of numbers by when their tasks were notified
//	{index}:servers            in a cluster: hash: shard to a hash of the run ids of the masters
//	request:<hash>             idempotency key of an application: the task's number
//	lease:<name>               holder of a lease
//	clouds                     sorted set of cloud areas by when they were heard of
//	{presence:<cloud>}:hosts   hash: address to the announcement of its agent, live or gone
//	{presence:<cloud>}:live    sorted set of addresses by when their presence ends
//	{presence:<cloud>}:order   sorted set of the same addresses by their text
//	{presence:<cloud>}:agents  hash: agent id to address of the same
//	{presence:<cloud>}:gone    sorted set of addresses by when their presence ended
//	{presence:<cloud>}:bound   hash: agent id that callers use to address
//	{presence:<cloud>}:names   hash: address to the list of these ids
//	bound                      set of cloud areas that have such ids
//
// The catalog; h is a hash of the namespace or the business, and a process is written there as
// its name and its host (see [member]):
//
//	{namespace:<h>}:registrations  hash: process to the id of its spec, when it was registered, and when that spec was asked for
//	{namespace:<h>}:specs          hash: id to spec, once for all hosts that have it
//	{namespace:<h>}:uses           hash: id to how many registrations have it; the last takes the spec with it
//	{namespace:<h>}:index          sorted set, by bytes, of the processes registered or reported
//	{namespace:<h>}:doubts         hash: process with a dirty mark to the token of the mark
//	{namespace:<h>}:answer:<token> for a minute: the answer to a change, for its repeat
//	reports:<cloud>:<shard>        hash: address to the last report of its agent
//	groups:<host>                  hash: namespace to its groups on the host
//	{freezes}:all                  hash: scope (see [freezeMember]) to when it ends, and the rest
//	{freezes}:order                sorted set, by bytes, of the same scopes
//	{freezes}:ends                 sorted set of them by when they end
//	{freezes}:answer:<token>       for a minute: the answer to a change, for its repeat
//	template-ids                   the last id of a template, of all businesses
//	{business:<h>}:templates       hash: id to the packed template
//	{business:<h>}:revisions       sorted set of the same ids by when they were changed
//	{business:<h>}:deleted         sorted set of ids by when they were deleted, as far back as the writes go
//	{business:<h>}:claims          hash: what no two templates may share to the id of the one that has it
//	{business:<h>}:writes          sorted set of tokens of the last writes by when they were done
//	{business:<h>}:topology        hash: the packed topology, its version, and a mark that no other had
//
// With [Options.WaitReplicas] each key that was waited for has for a minute an
// empty companion, which ends in :wait or is wait:{<key>}.
//
// In the catalog only freezes and answers expire; bound ids do not. Every other
// key but the clock gets its expiry in the script that makes it: the keys of a
// task expire with the task, an index with the last of its tasks or up to a
// minute later, presence keys with the last remembered agent, freezes with the
// last of them. A script that finds no head writes nothing, so an expired task
// does not reappear in parts.
//
// # Order of writes
//
// Creating a task is: allot the number and, if there is an idempotency key,
// point it there; enter the number into the indexes; write the chunks; write
// the head. Before the head there is no task; the keys left by a dispatcher that
// died are found by the repeat of the request or by the sweep, or expire. The sweep drops numbers without a task, so the head is
// written only while the first visit of its number is certainly still to come,
// and the sweep drops no visit that was set since it read the index. The repeat
// enters the number into the indexes before and after it writes the task.
// Every call can be repeated, so a call whose reply was lost is sent again; after
// [Options.Patience] it returns [taskstore.ErrUnavailable].
//
// Reports are in other slots than the index of a namespace, so that the work
// of a big area spreads. A report that names the same processes as the one
// before does not touch the index. One that names others sets dirty marks on
// them, is written, and settles the marks; an interruption leaves marks, which
// the next read of a page settles. See [touchScript].
//
// # What a fail-over may lose
//
// Redis replicates after it has replied. When a replica takes over, the last
// writes of the old server may be missing: a task that was just accepted, a
// rejection, results. With [Options.WaitReplicas] creations (index entry and
// idempotency key included), rejections and results are confirmed only when so
// many replicas have them; they are then lost only together with those
// replicas, or if a replica is promoted that was not among them. The same holds
// for registrations, groups, freezes, templates and topologies. Reports do not wait: the next
// report of the host is complete. If the index loses processes of a report that
// was not lost, the host's reports enter them again within an hour.
//
// Begin, Delivered, Dispatched, positions in the stream, visits and
// announcements do not wait, because losing one costs a repetition: a chunk is
// delivered again to agents that remember it, or published again, or an agent
// announces itself again. Undone waits, because its chunks are published: a task
// that no replica has could run, be lost, and be submitted again by its caller,
// who got an error. One more loss is possible: a Begin is lost and the task is
// rejected afterwards, though an agent has begun; its results are dropped.
//
// In a cluster the index is not on the server that has the task. That server
// may lose the last results of a task after its end was notified, which the index
// remembers. So there the index remembers notified tasks for a minute, and the
// sweep visits them only if a master was replaced or restarted meanwhile. A
// single master has both, and its replicas never have the later without the
// earlier.
//
// Numbers go forward all the same. The clock key that lost its end continues
// from the time, and every store sends along the highest number that it was
// given. Only a server whose clock is behind and a dispatcher that has seen
// nothing can meet a number that was given before; if its task is still there,
// the dispatcher finds it and takes the next.
//
// In a cluster the servers' clocks judge deadlines of the tasks that they have,
// and stamp the announcements that they keep; [Store.Now] is the time of the
// one that has the clock key. So they must be kept together, by NTP.
package redisstore
