package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// resultBlock is how many items share one hash of results.
const resultBlock = 1000

// keyspace builds every key; what each key holds is in the package comment.
// The text in braces decides the slot of a key in a cluster.
type keyspace struct{ prefix string }

// taskKeys builds the keys of one task, all in one slot.
type taskKeys struct{ base string }

func (k keyspace) task(id procfleet.TaskID) taskKeys {
	return taskKeys{base: k.prefix + "{" + string(id) + "}:"}
}

func (t taskKeys) head() string           { return t.base + "head" }
func (t taskKeys) marks() string          { return t.base + "marks" }
func (t taskKeys) writer() string         { return t.base + "writer" }
func (t taskKeys) chunk(n int) string     { return t.base + "chunk:" + strconv.Itoa(n) }
func (t taskKeys) results(n int) string   { return t.base + "results:" + strconv.Itoa(n) }
func (t taskKeys) resultsOf(i int) string { return t.results(i / resultBlock) }

// wait is a key in the slot of another one. It is written before each WAIT,
// which waits for the last write of its connection: a script that finds its
// work done writes nothing, and what it found may not be on a replica yet.
func (k keyspace) wait(key string) string {
	if end := strings.IndexByte(key, '}'); end >= 0 {
		return key[:end+1] + ":wait"
	}
	return k.prefix + "wait:{" + key + "}" // the right to keys is that to the prefix
}

func (k keyspace) clock() string    { return k.prefix + "{index}:clock" }
func (k keyspace) tasks() string    { return k.prefix + "{index}:tasks" }
func (k keyspace) expiries() string { return k.prefix + "{index}:expiries" }

func (k keyspace) sweep(shard int) string {
	return k.prefix + "{index}:sweep:" + strconv.Itoa(shard)
}

func (k keyspace) notified(shard int) string {
	return k.prefix + "{index}:told:" + strconv.Itoa(shard)
}

func (k keyspace) servers() string { return k.prefix + "{index}:servers" }

// request is the key of an idempotency record. What callers send is hashed,
// so that no text of theirs becomes part of a key.
func (k keyspace) request(application, key string) string {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(application)) + ":" + application + key))
	return k.prefix + "request:" + hex.EncodeToString(sum[:])
}

func (k keyspace) lease(name string) string { return k.prefix + "lease:" + name }

func (k keyspace) clouds() string { return k.prefix + "clouds" }

// presenceKeys builds the keys of the agents of one cloud area.
type presenceKeys struct{ base string }

func (k keyspace) presence(cloud procfleet.CloudArea) presenceKeys {
	return presenceKeys{base: k.prefix + "{presence:" + strconv.FormatInt(int64(cloud), 10) + "}:"}
}

func (p presenceKeys) hosts() string     { return p.base + "hosts" }
func (p presenceKeys) live() string      { return p.base + "live" }
func (p presenceKeys) order() string     { return p.base + "order" }
func (p presenceKeys) agents() string    { return p.base + "agents" }
func (p presenceKeys) gone() string      { return p.base + "gone" }
func (p presenceKeys) claimants() string { return p.base + "rivals" }
func (p presenceKeys) bound() string     { return p.base + "bound" }
func (p presenceKeys) names() string     { return p.base + "names" }

// all returns the keys that [announceScript] declares.
func (p presenceKeys) all() []string {
	return []string{p.hosts(), p.live(), p.order(), p.agents(), p.gone(), p.bound(), p.names(), p.claimants()}
}

func (k keyspace) bound() string { return k.prefix + "bound" }

// namespaceKeys builds the keys of one namespace, all in one
// slot. The namespace is a caller's text and stands there as its hash.
type namespaceKeys struct{ base string }

func (k keyspace) namespace(name string) namespaceKeys {
	sum := sha256.Sum256([]byte(name))
	return namespaceKeys{base: k.prefix + "{namespace:" + hex.EncodeToString(sum[:16]) + "}:"}
}

func (n namespaceKeys) registrations() string { return n.base + "registrations" }
func (n namespaceKeys) specs() string         { return n.base + "specs" }
func (n namespaceKeys) uses() string          { return n.base + "uses" }
func (n namespaceKeys) index() string         { return n.base + "index" }
func (n namespaceKeys) dirtyMarks() string    { return n.base + "doubts" }

// answer is the key of an answer, see [answeringOnce].
func (n namespaceKeys) answer(token string) string { return n.base + "answer:" + token }

// businessKeys builds the keys of one business, all in one slot.
// Accounts are callers' texts and stand there as a hash.
type businessKeys struct{ base string }

func (k keyspace) business(b catalog.Business) businessKeys {
	sum := sha256.Sum256([]byte(strconv.FormatInt(b.ID, 10) + ":" + b.Account))
	return businessKeys{base: k.prefix + "{business:" + hex.EncodeToString(sum[:16]) + "}:"}
}

func (b businessKeys) templates() string { return b.base + "templates" }
func (b businessKeys) revisions() string { return b.base + "revisions" }
func (b businessKeys) deleted() string   { return b.base + "deleted" }
func (b businessKeys) claims() string    { return b.base + "claims" }
func (b businessKeys) writes() string    { return b.base + "writes" }
func (b businessKeys) topology() string  { return b.base + "topology" }

func (k keyspace) templateIDs() string { return k.prefix + "template-ids" }

func (k keyspace) groups(h procfleet.Host) string { return k.prefix + "groups:" + h.String() }

// freezes returns the keys of everything that is frozen, in one slot.
func (k keyspace) freezes() []string {
	const base = "{freezes}:"
	return []string{k.prefix + base + "all", k.prefix + base + "order", k.prefix + base + "ends"}
}

// freezeAnswer is the key of an answer, see [answeringOnce].
func (k keyspace) freezeAnswer(token string) string { return k.prefix + "{freezes}:answer:" + token }

// reportShards is into how many keys, and so slots, the reports of one cloud
// area are divided: 100,000 hosts are some 100 MB, and a slot moves key by key.
const reportShards = 16

func (k keyspace) reports(h procfleet.Host) string {
	shard := crc32.ChecksumIEEE(h.Addr.AsSlice()) % reportShards
	return k.prefix + "reports:" + strconv.FormatInt(int64(h.Cloud), 10) + ":" + strconv.Itoa(int(shard))
}
