package redistest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Client returns a client that inspects the server independently of the code under test.
func (s *Server) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Keys returns the keys that match a pattern.
func Keys(tb testing.TB, c *redis.Client, pattern string) []string {
	tb.Helper()
	var all []string
	scan := c.Scan(tb.Context(), 0, pattern, 1000).Iterator()
	for scan.Next(tb.Context()) {
		all = append(all, scan.Val())
	}
	if err := scan.Err(); err != nil {
		tb.Fatal(err)
	}
	return all
}

// LimitMemory lets the server use about spare more bytes; below zero it rejects every
// write.
func LimitMemory(tb testing.TB, c *redis.Client, spare int64) {
	tb.Helper()
	info, err := c.InfoMap(tb.Context(), "memory").Result()
	if err != nil {
		tb.Fatal(err)
	}
	used, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.ConfigSet(tb.Context(), "maxmemory", strconv.FormatInt(used+spare, 10)).Err(); err != nil {
		tb.Fatal(err)
	}
}

// StartMaster starts a server that sends a replica its data at once, instead of waiting
// some seconds for more replicas.
func StartMaster(tb testing.TB) *Server {
	tb.Helper()
	return Start(tb, "--repl-diskless-sync-delay", "0")
}

// StartQuick starts a server that syncs its writes to disk once a second, as in
// production.
func StartQuick(tb testing.TB) *Server {
	tb.Helper()
	return Start(tb, "--appendfsync", "everysec")
}

// InsideScripts returns the time that the server has spent in scripts. Unlike the time on
// the clock it does not depend on the other load of the machine.
func InsideScripts(tb testing.TB, c *redis.Client) time.Duration {
	tb.Helper()
	stats, err := c.InfoMap(tb.Context(), "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, found := strings.Cut(stats["Commandstats"]["cmdstat_evalsha"], "usec=")
	if !found {
		return 0 // no script has run yet
	}
	digits, _, _ := strings.Cut(rest, ",")
	us, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// LoseReply lets the next pipeline with one of the scripts run and its replies be lost.
// meanwhile is called before the client notices.
func LoseReply(c redis.UniversalClient, meanwhile func(), scripts ...*redis.Script) {
	c.AddHook(&lostReply{meanwhile: meanwhile, of: scripts})
}

type lostReply struct {
	meanwhile func()
	of        []*redis.Script
	lost      atomic.Bool
}

func (*lostReply) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*lostReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *lostReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if !slices.ContainsFunc(cmds, h.matches) || h.lost.Swap(true) {
			return err
		}
		h.meanwhile()
		for _, c := range cmds {
			c.SetErr(io.ErrUnexpectedEOF)
		}
		return io.ErrUnexpectedEOF
	}
}

func (h *lostReply) matches(c redis.Cmder) bool {
	return len(c.Args()) > 1 && slices.ContainsFunc(h.of, func(s *redis.Script) bool { return c.Args()[1] == s.Hash() })
}

// BreakWait closes the connection of the next call that waits for replicas.
func BreakWait(ctx context.Context, c *redis.Client) error {
	for {
		clients, err := c.ClientList(ctx).Result()
		if err != nil {
			return err
		}
		for client := range strings.Lines(clients) {
			var id string
			if _, err := fmt.Sscanf(client, "id=%s", &id); err == nil && strings.Contains(client, " flags=b ") {
				return c.ClientKillByFilter(ctx, "ID", id).Err()
			}
		}
	}
}
