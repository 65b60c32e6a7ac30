package rediscatalog

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/internal/recent"
	"github.com/procfleet/procfleet/internal/redisconn"
)

var _ catalog.Store = (*Catalog)(nil)

// Catalog is a catalog in Redis. Create it with [New]. It is safe for concurrent use.
type Catalog struct {
	conn *redisconn.Conn
	keys keyspace
	// highestID is the highest template id that this catalog has received. The catalog
	// sends it with every request for an id, so that ids do not repeat after a fail-over
	// that lost the last one.
	highestID redisconn.Highest

	caches    *recent.Businesses[businessCache]
	cachesEnd *time.Timer // evicts unused caches while no business is used
}

// New returns the catalog on a connection and loads its scripts.
func New(ctx context.Context, conn *redisconn.Conn) (*Catalog, error) {
	s := &Catalog{
		conn:   conn,
		keys:   keyspace{prefix: conn.Prefix()},
		caches: recent.New(func() *businessCache { return &businessCache{} }),
	}
	if err := conn.Load(ctx, scripts()...); err != nil {
		return nil, err
	}
	s.cachesEnd = time.AfterFunc(recent.For, s.evictCaches)
	return s, nil
}

// Close releases the cached businesses. It does not close the connection.
func (s *Catalog) Close() { s.cachesEnd.Stop() }

func scripts() []*redis.Script {
	return []*redis.Script{
		registerScript, unregisterScript, lookupScript, registeredHostsScript,
		touchScript, settleScript, reportScript, pageScript, fieldsScript,
		freezeScript, liftScript, freezePageScript, freezesOfScript,
		templateIDsScript, templatesScript, changeTemplatesScript, changesScript,
		setTopologyScript, topologyScript, setWebhookScript, removeWebhookScript, recordDeliveryScript,
	}
}
