// Package journal stores the operations that the agent has accepted, and their results, on
// disk, so that no operation is executed twice or lost when the agent or its host crashes.
//
// An operation is received, executing, finished, and finally acknowledged, when the servers
// have stored its result. Each step up to finished is durable before the method that
// records it returns; concurrent callers share one fsync. Per process, the journal also
// stores the highest fence received and the engine's record of the process.
//
// # Files
//
// A generation is a pair of files: log-<n> has one record per change, and snapshot-<n> is
// the state at the creation of log-<n>. A record is its length, its CRC-32C and JSON. When
// a log has grown enough, the next generation is written under temporary names and renamed;
// the previous generation is retained and read if the newest snapshot is damaged. Memory
// holds an index only; the contents of records stay in the files.
//
// # Retention
//
// A new generation omits acknowledged operations that are not among the last 100,000, or are 7
// days older than the newest command. Status operations are removed first, because repeating a
// status operation changes nothing. Open and unacknowledged operations are always retained.
//
// Removal never causes a second execution. Each operation that changes the host raises the
// fence of its process, and a command that is not stored counts as new only if it is above
// that fence. Fences are retained as long as the engine has a record of the process,
// otherwise for 30 days and at most 100,000 of them. The highest removed fence becomes the
// floor, which every generation stores: a command for a process without a fence must be
// above the floor. A repeat of a removed operation is therefore refused; its sender has
// acknowledged the result before.
//
// The age of an operation is the distance of its fence to the newest fence. Fences are
// microseconds of the servers' clock and are stored with each operation. Neither a step of
// the host's clock nor a restart changes which operations are retained.
//
// # Damage
//
// A crash may tear records that were never reported as durable. They are truncated when the
// journal is opened, after a copy to journal.bad-<time>.
//
// A record was durable if a record of a later fsync exists. If a durable record is damaged
// and no older generation has the same content, the journal loads all intact records into a
// new generation and renames the damaged files to journal.bad-<time>-<file>. Records of
// executed operations and of desired states may be missing then. Therefore
// [Recovered.Damage] is set now and at each later opening, operations without a record of
// their begin count as begun, and commands that are not newer than the loaded ones are
// refused, because they may have been executed.
//
// If no record is intact, [Open] returns [ErrDamaged]; for a journal of another format it
// returns [ErrFormat]. In both cases it changes no file. The caller can continue with
// [Unavailable], which refuses all changes of the host.
//
// # Full and failing disks
//
// After a failed write or fsync, no change of its group has happened. Operations that change
// the host are refused with code 117, status operations are stored in memory only. After a
// failed fsync the log is closed for writing: the next change begins a new generation.
package journal
