package redisconn

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/internal/packing"
)

// errUnfit means that an operator must change the version or the configuration of a
// Redis server.
var errUnfit = errors.New("redis cannot be the task store")

// Check verifies that every server can be the task store: Redis 6.2 or later, with
// eviction disabled, and data of [packing.Format]. A server that evicts keys when its
// memory is full would lose accepted tasks. If the user may not run INFO, Check only logs
// a warning.
func (c *Conn) Check(ctx context.Context) error {
	if err := c.checkServers(ctx); err != nil {
		return err
	}
	return c.checkFormat(ctx)
}

// checkFormat checks the stored format. It stores the format only if there is none,
// because a server that is full rejects every write.
func (c *Conn) checkFormat(ctx context.Context) error {
	key := c.opt.Prefix + "{index}:format"
	var stored *redis.StringCmd
	read := func(ctx context.Context, pipe redis.Pipeliner) { stored = pipe.Get(ctx, key) }
	err := c.Read(ctx, read)
	if err == nil && stored.Val() == "" {
		err = c.Read(ctx, func(ctx context.Context, pipe redis.Pipeliner) {
			pipe.SetArgs(ctx, key, packing.Format, redis.SetArgs{Mode: "NX"})
			read(ctx, pipe)
		})
	}
	if err != nil {
		return fmt.Errorf("read the format: %w", err)
	}
	found, err := strconv.ParseUint(stored.Val(), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: its format is %.20q", errUnfit, stored.Val())
	}
	if err := packing.CheckFormat("its data", found); err != nil {
		return fmt.Errorf("%w: %w: start the procfleet that wrote it, or give another Redis", errUnfit, err)
	}
	return nil
}

func (c *Conn) checkServers(ctx context.Context) error {
	return c.persist(ctx, func(ctx context.Context) error {
		if cluster, ok := c.client.(*redis.ClusterClient); ok {
			return cluster.ForEachMaster(ctx, func(ctx context.Context, server *redis.Client) error {
				return c.checkServer(ctx, server)
			})
		}
		return c.checkServer(ctx, c.client)
	})
}

func (c *Conn) checkServer(ctx context.Context, server redis.Cmdable) error {
	info, err := server.Info(ctx).Result()
	var refused redis.Error
	if errors.As(err, &refused) && (classify(err) == faultPermanent || says(refused, "NOPERM")) {
		c.log.WithError(err).Warn("Redis version and maxmemory-policy not checked")
		return nil
	}
	if err != nil {
		return err
	}
	if v := InfoField(info, "redis_version"); !atLeast(v, 6, 2) {
		return fmt.Errorf("%w: its version is %s; 6.2 or later is needed", errUnfit, v)
	}
	if policy := InfoField(info, "maxmemory_policy"); policy != "" && policy != "noeviction" {
		return fmt.Errorf("%w: it would evict tasks, its maxmemory-policy is %s; set it to noeviction", errUnfit, policy)
	}
	return nil
}

// InfoField returns one field of a reply to the Redis command INFO.
func InfoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return true // assume that a fork with another version scheme is new enough
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA != nil || errB != nil || a > major || a == major && b >= minor
}
