// Package journal is the agent's memory of what it was told to do and what
// became of it, kept on disk so that no operation is run twice or forgotten
// when the agent or its host dies.
//
// An operation is received, then executing, then finished, and at last
// acknowledged, when the results stream has its result. Each step up to
// finished is on disk before the method that reports it returns; callers that
// come together share one fsync. The package also keeps, per process, the
// highest fence received and the engine's own record of the process.
//
// # Files
//
// A generation is a pair of files: log-<n> takes the changes, one record each,
// and snapshot-<n> is everything that held when log-<n> was begun. A record is
// its length, its CRC-32C and JSON. When a log has grown enough, the next
// generation is written beside the old one and renamed into place; the one
// before is kept, and is read when the newest snapshot turns out damaged.
// Only an index is held in memory, the contents stay in the files.
//
// # Forgetting
//
// A new generation leaves out finished operations whose results are
// acknowledged: all but the last 100,000, and those that are 7 days older than
// the newest command. Statuses are forgotten first, since looking twice changes
// nothing: they get the room that operations which changed the host leave.
// Open and unacknowledged operations are always kept.
//
// Forgetting never makes an operation run twice. Each operation that changes
// something has raised the fence of its process, and a command that is not
// remembered is new only if it is above that fence. Fences are kept longer than
// operations: as long as the engine has a record of the process, else for 30
// days and at most 100,000 of them. A fence that is forgotten raises the floor,
// which every generation keeps: a command for a process without a fence must be
// above the floor. So whatever was forgotten, a repeat is refused, and only its
// result is lost to the sender, who has acknowledged it.
//
// Age is the distance of fences, which are microseconds of the servers' clock
// and are on disk with each operation. The host's clock has no part in it:
// neither a step of that clock nor a restart changes what is remembered.
//
// # Damage
//
// What was written but never reported durable may be torn by a crash. It is
// cut off when the journal is opened, after a copy went to journal.bad-<time>.
// Records that were durable carry proof of it: a later record of another
// fsync. If such a record is damaged and no older generation holds the same,
// the journal goes on with whatever is whole, in a new generation, and gives
// the damaged files the names journal.bad-<time>-<file>. It does not know any
// more what was run and what is wanted, so it says so in [Recovered.Damage],
// now and whenever it is opened later; operations that had not begun count as
// begun; and commands as old as those that it holds are refused, since they
// may have been executed and forgotten.
//
// Of files in which nothing is whole [Open] returns [ErrDamaged], of a journal
// that a newer program wrote [ErrNewerFormat], and changes none. The caller
// can go on with [Unavailable], which refuses everything that would change the
// host.
//
// # Full and failing disks
//
// When a write or an fsync fails, nothing of that group of changes has
// happened. Operations that change something are then refused with code 117,
// status operations are kept in memory only. After a failed fsync the log is
// not trusted any more: the next change must first write a new generation.
package journal
