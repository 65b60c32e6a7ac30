package rediscatalog_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/catalog/catalogtest"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// onServer is a store together with the server that it is on.
type onServer struct {
	*stores.Redis
	server *redistest.Server
}

// open opens a store. Unless the options set a patience, its calls wait for Redis longer than a busy
// machine may suspend it.
func open(tb testing.TB, opt redisconn.Options) *stores.Redis {
	tb.Helper()
	opt.Log = testenv.Log(tb)
	if opt.Patience == 0 {
		opt.Patience = 30 * time.Second
	}
	s, err := stores.OpenRedis(tb.Context(), opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return s
}

func openOn(tb testing.TB, server *redistest.Server) onServer {
	tb.Helper()
	return onServer{Redis: open(tb, redisconn.Options{URL: server.URL()}), server: server}
}

func TestCatalogStandalone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	catalogtest.Run(t, catalogtest.Harness{
		// The checks share the server; each has keys of its own.
		Open: func(tb testing.TB) catalogtest.Store {
			tb.Helper()
			return open(tb, redisconn.Options{URL: server.URL(), Prefix: tb.Name() + ":"})
		},
		Long: testenv.IsLong(),
	})
}

func TestCatalogSurvivesARestart(t *testing.T) {
	t.Parallel()
	h := catalogtest.Harness{
		Open: func(tb testing.TB) catalogtest.Store {
			tb.Helper()
			return openOn(tb, redistest.Start(tb))
		},
		Reopen: func(tb testing.TB, old catalogtest.Store) catalogtest.Store {
			tb.Helper()
			server := old.(onServer).server
			server.Restart(tb)
			return openOn(tb, server)
		},
	}
	for _, c := range catalogtest.Checks() {
		if c.Reopens {
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				c.Fn(t.Context(), t, h.Subject(t))
			})
		}
	}
}

func TestCatalogCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	url := nodes[0].URL() + "?addr=" + nodes[1].Addr + "&addr=" + nodes[2].Addr
	catalogtest.Run(t, catalogtest.Harness{
		Open: func(tb testing.TB) catalogtest.Store {
			tb.Helper()
			return open(tb, redisconn.Options{URL: url, Prefix: tb.Name() + ":"})
		},
		Light: !testenv.IsLong(), Long: testenv.IsLong(),
	})
}

func TestCatalogSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.StartMaster(t)
	redistest.Start(t, "--replicaof", strings.Replace(master.Addr, ":", " ", 1))
	url := redistest.StartIdleSentinel(t, "fleet", master, 1).URL() + "?master_name=fleet"
	catalogtest.Run(t, catalogtest.Harness{
		Open: func(tb testing.TB) catalogtest.Store {
			tb.Helper()
			return open(tb, redisconn.Options{URL: url, Prefix: tb.Name() + ":", WaitReplicas: 1, WaitTimeout: 10 * time.Second, Patience: 30 * time.Second})
		},
		Light: !testenv.IsLong(), Long: testenv.IsLong(),
	})
}
