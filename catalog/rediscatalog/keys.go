package rediscatalog

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/crc32"
	"strconv"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// keyspace builds the names of all keys; the package comment describes their contents.
// The text in braces determines the slot of a key in a cluster.
type keyspace struct{ prefix string }

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
func (n namespaceKeys) dirtyMarks() string    { return n.base + "dirty" }

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

func (k keyspace) policies() string { return k.prefix + "rollout-policies" }

func (k keyspace) schedules() string { return k.prefix + "schedules" }

func (k keyspace) webhooks() string { return k.prefix + "{webhooks}" }

// deadDeliveries returns the key of a webhook's dead deliveries, in the slot of the webhooks. It
// contains a hash of the names, because a caller chooses their text.
func (k keyspace) deadDeliveries(application, name string) string {
	sum := sha256.Sum256([]byte(application + "\x00" + name))
	return k.webhooks() + ":dead:" + hex.EncodeToString(sum[:16])
}

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

func (k keyspace) reports(h procfleet.Host) string { return k.prefix + "reports:" + shardOf(h) }

// labels returns the key of the labels of a host, distributed as the reports are.
func (k keyspace) labels(h procfleet.Host) string { return k.prefix + "labels:" + shardOf(h) }

func shardOf(h procfleet.Host) string {
	shard := crc32.ChecksumIEEE(h.Addr.AsSlice()) % reportShards
	return strconv.FormatInt(int64(h.Cloud), 10) + ":" + strconv.Itoa(int(shard))
}
