// Package stores opens the task store and the catalog of a backend, which share one
// connection to Redis or one file.
package stores

import (
	"context"
	"errors"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/catalog/boltcatalog"
	"github.com/procfleet/procfleet/catalog/rediscatalog"
	"github.com/procfleet/procfleet/internal/boltdb"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/boltstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
)

// Full combines a task store and a catalog. Close closes both.
type Full interface {
	taskstore.Store
	catalog.Store
}

var (
	_ Full = (*Redis)(nil)
	_ Full = (*Bolt)(nil)
)

// Redis is a task store and a catalog on one connection to Redis. Create it with
// [OpenRedis]. It is safe for concurrent use.
type Redis struct {
	*redisstore.Store
	*rediscatalog.Catalog
	Conn *redisconn.Conn
}

// OpenRedis opens a connection with [redisconn.Open], and the task store and the catalog
// on it.
func OpenRedis(ctx context.Context, opt redisconn.Options) (*Redis, error) {
	conn, err := redisconn.Open(ctx, opt)
	if err != nil {
		return nil, err
	}
	c, err := rediscatalog.New(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s, err := redisstore.New(ctx, conn, redisstore.Options{ForgetHosts: c.ForgetReports})
	if err != nil {
		c.Close()
		return nil, errors.Join(err, conn.Close())
	}
	return &Redis{Store: s, Catalog: c, Conn: conn}, nil
}

// Close closes the stores and the connection.
func (r *Redis) Close() error {
	r.Catalog.Close()
	return r.Store.Close()
}

// Bolt is a task store and a catalog in one bbolt file. Create it with [OpenBolt]. It is
// safe for concurrent use.
type Bolt struct {
	*boltstore.Store
	*boltcatalog.Catalog
	DB *boltdb.DB
}

// OpenBolt opens a file with [boltdb.Open], and the task store and the catalog in it.
func OpenBolt(path string, opt boltdb.Options) (*Bolt, error) {
	db, err := boltdb.Open(path, opt)
	if err != nil {
		return nil, err
	}
	s, err := boltstore.New(db, boltstore.Options{ForgetHost: boltcatalog.ForgetHost})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	c, err := boltcatalog.New(db, boltcatalog.Options{RememberHost: boltstore.RememberHost})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Bolt{Store: s, Catalog: c, DB: db}, nil
}
