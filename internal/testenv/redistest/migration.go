package redistest

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Migration moves one slot from one node of a cluster to another, key by key.
type Migration struct {
	From, To *redis.Client
	slot     int64
	toAddr   string
}

// BeginMigration finds which of two nodes has the slot of a key, and prepares
// both.
func BeginMigration(tb testing.TB, nodes []*Server, key string) *Migration {
	tb.Helper()
	m := &Migration{From: nodes[0].Client(tb), To: nodes[1].Client(tb), toAddr: nodes[1].Addr}
	slot, err := m.From.ClusterKeySlot(tb.Context(), key).Result()
	if err != nil {
		tb.Fatal(err)
	}
	m.slot = slot
	if m.From.Exists(tb.Context(), key).Err() != nil { // the error is MOVED
		m.From, m.To, m.toAddr = m.To, m.From, nodes[0].Addr
	}
	m.begin(tb)
	return m
}

func (m *Migration) begin(tb testing.TB) {
	tb.Helper()
	do(tb, m.To, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", nodeID(tb, m.From))
	do(tb, m.From, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", nodeID(tb, m.To))
}

// Move moves keys to the other node.
func (m *Migration) Move(tb testing.TB, keys ...string) {
	tb.Helper()
	host, port, err := net.SplitHostPort(m.toAddr)
	if err != nil {
		tb.Fatal(err)
	}
	for _, key := range keys {
		do(tb, m.From, "MIGRATE", host, port, key, 0, 5000)
	}
}

// Rest returns the keys that were not moved yet.
func (m *Migration) Rest(tb testing.TB) []string {
	tb.Helper()
	keys, err := m.From.ClusterGetKeysInSlot(tb.Context(), int(m.slot), 1000).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// Finish moves the remaining keys and assigns the slot to the other node.
func (m *Migration) Finish(tb testing.TB) {
	tb.Helper()
	m.Move(tb, m.Rest(tb)...)
	id := nodeID(tb, m.To)
	do(tb, m.To, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	do(tb, m.From, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
}

func do(tb testing.TB, c *redis.Client, args ...any) {
	tb.Helper()
	if err := c.Do(tb.Context(), args...).Err(); err != nil {
		tb.Fatalf("%v: %v", args, err)
	}
}

func nodeID(tb testing.TB, c *redis.Client) string {
	tb.Helper()
	id, err := c.Do(tb.Context(), "CLUSTER", "MYID").Text()
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// Refusals returns the number of errors of a kind that a server has replied.
func Refusals(tb testing.TB, c *redis.Client, kind string) int {
	tb.Helper()
	stats, err := c.Info(tb.Context(), "errorstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, found := strings.Cut(stats, "errorstat_"+kind+":count=")
	if !found {
		return 0
	}
	digits, _, _ := strings.Cut(rest, "\r\n")
	count, err := strconv.Atoi(digits)
	if err != nil {
		tb.Fatal(err)
	}
	return count
}
