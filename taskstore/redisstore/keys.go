package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
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
func (t taskKeys) previous(n int) string  { return t.base + "previous:" + strconv.Itoa(n) }
func (t taskKeys) results(n int) string   { return t.base + "results:" + strconv.Itoa(n) }
func (t taskKeys) resultsOf(i int) string { return t.results(i / resultBlock) }

func (k keyspace) tasks() string    { return k.prefix + "{index}:tasks" }
func (k keyspace) expiries() string { return k.prefix + "{index}:expiries" }

func (k keyspace) sweep(shard int) string {
	return k.prefix + "{index}:sweep:" + strconv.Itoa(shard)
}

func (k keyspace) notified(shard int) string {
	return k.prefix + "{index}:notified:" + strconv.Itoa(shard)
}

func (k keyspace) servers() string { return k.prefix + "{index}:servers" }

// request returns the key of an idempotency record. It contains only a hash of the
// caller's key, so that a caller's text never becomes part of a key name.
func (k keyspace) request(application, key string) string {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(application)) + ":" + application + key))
	kind := "request:"
	if strings.HasPrefix(key, taskstore.UndoKey) {
		kind = "undo:" // which workers may write, unlike the keys of callers
	}
	return k.prefix + kind + hex.EncodeToString(sum[:])
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
