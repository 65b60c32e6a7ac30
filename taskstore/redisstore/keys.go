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

// resultBlock is the number of items whose results share one hash.
const resultBlock = 1000

// keyspace builds the names of all keys; the package comment describes their contents.
// The text in braces determines the slot of a key in a cluster.
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

// wait returns a key in the slot of another key. It is written before each WAIT,
// because WAIT waits for the last write of its connection: a script whose work was
// already done writes nothing, although a replica may still lack the earlier write.
func (k keyspace) wait(key string) string {
	if end := strings.IndexByte(key, '}'); end >= 0 {
		return key[:end+1] + ":wait"
	}
	return k.prefix + "wait:{" + key + "}" // has the prefix, because the ACL of the user may permit only keys with it
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

// request returns the key of an idempotency record. It contains only a hash of the
// caller's key, so that a caller's text never becomes part of a key name.
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

// all returns the keys that [announceScript] declares, in order.
func (p presenceKeys) all() []string {
	return []string{p.hosts(), p.live(), p.order(), p.agents(), p.gone(), p.bound(), p.names(), p.claimants()}
}

func (k keyspace) bound() string { return k.prefix + "bound" }

// namespaceKeys builds the keys of one namespace, all in one slot. The keys contain a
// hash of the namespace, because a caller chooses its text.
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

// answer returns the key of a stored reply, see [answeringOnce].
func (n namespaceKeys) answer(token string) string { return n.base + "answer:" + token }

// businessKeys builds the keys of one business, all in one slot. The keys contain a
// hash of the account, because a caller chooses its text.
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

// freezes returns the keys of all freezes, which are in one slot.
func (k keyspace) freezes() []string {
	const base = "{freezes}:"
	return []string{k.prefix + base + "all", k.prefix + base + "order", k.prefix + base + "ends"}
}

// freezeAnswer returns the key of a stored reply, see [answeringOnce].
func (k keyspace) freezeAnswer(token string) string { return k.prefix + "{freezes}:answer:" + token }

// reportShards is the number of keys, and so of slots, over which the reports of one
// cloud area are distributed. The reports of 100,000 hosts take about 100 MB, and
// resharding a cluster moves a slot key by key.
const reportShards = 16

func (k keyspace) reports(h procfleet.Host) string {
	shard := crc32.ChecksumIEEE(h.Addr.AsSlice()) % reportShards
	return k.prefix + "reports:" + strconv.FormatInt(int64(h.Cloud), 10) + ":" + strconv.Itoa(int(shard))
}
