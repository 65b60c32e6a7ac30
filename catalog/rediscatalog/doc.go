// Package rediscatalog stores the catalog of managed processes in Redis, over a
// connection of package redisconn.
//
// # Layout
//
// Every key begins with the prefix of the connection. <h> is a hash of the namespace or
// the business. A process is encoded as its name and its host (see [member]):
//
//	{namespace:<h>}:registrations  hash from process to the id of its spec, the time of registration,
//	                               and the time at which the spec was requested
//	{namespace:<h>}:specs          hash from id to spec, stored once for all hosts
//	{namespace:<h>}:uses           hash from spec id to the number of its registrations; a spec
//	                               without registrations is deleted
//	{namespace:<h>}:index          sorted set, by bytes, of the registered or reported processes
//	{namespace:<h>}:dirty          hash from process with a dirty mark to the token of the mark
//	{namespace:<h>}:answer:<token> for one minute: the reply to a change, for a repeated call
//	reports:<cloud>:<shard>        hash from address to the last report of its agent
//	groups:<host>                  hash from namespace to its process groups on the host
//	labels:<cloud>:<shard>         hash from host to the JSON object of its labels
//	rollout-policies               hash from namespace to the JSON object of its rollout policies and windows
//	schedules                      hash from namespace, 0 and name to the JSON object of a schedule, and with the
//	                               suffix "\x00\x00run" to the time and the JSON object of its last run
//	{webhooks}                     hash from application, 0 and name to the JSON object of a webhook, and with the
//	                               suffixes "\x00\x00state" to that of its state, "\x00\x00dead" to the number of
//	                               its dead deliveries
//	{webhooks}:dead:<webhook>      sorted set of the JSON objects of its dead deliveries, by position
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
// Only freezes, reports and stored replies expire.
//
// # Order of writes
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
// writes of the old server may be missing. With [redisconn.Options.WaitReplicas] the
// catalog confirms registrations, groups, freezes, policies, templates and topologies only when
// that many replicas have them. Reports do not wait, because the next report of a host
// is complete. If the index loses processes of a report that was not lost, the host's
// reports enter them again within about an hour.
package rediscatalog
