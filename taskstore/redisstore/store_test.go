package redisstore_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// onServer is a store together with the server that it is on.
type onServer struct {
	*redisstore.Store
	server *redistest.Server
}

// open opens a store. Unless the options set a patience, its calls wait for Redis longer than a busy
// machine may suspend it.
func open(tb testing.TB, opt redisconn.Options) *redisstore.Store {
	tb.Helper()
	opt.Log = testenv.Log(tb)
	if opt.Patience == 0 {
		opt.Patience = 30 * time.Second
	}
	s, err := redisstore.Open(tb.Context(), opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return s
}

func openOn(tb testing.TB, server *redistest.Server) onServer {
	tb.Helper()
	return onServer{Store: open(tb, redisconn.Options{URL: server.URL()}), server: server}
}

func orphan(tb testing.TB, s taskstore.Store, d taskstore.Draft) procfleet.TaskID {
	tb.Helper()
	id, err := s.(interface {
		Orphan(context.Context, taskstore.Draft) (procfleet.TaskID, error)
	}).Orphan(tb.Context(), d)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

func delay(tb testing.TB, s taskstore.Store, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error) {
	tb.Helper()
	return s.(interface {
		Delay(ctx context.Context, d taskstore.Draft, meanwhile func()) (procfleet.Task, bool, error)
	}).Delay(tb.Context(), d, meanwhile)
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	start := redistest.Start
	if runtime.GOOS == "linux" {
		start = redistest.BuildClock(t).Start
	}
	servers := redistest.NewPool(t, start)
	h := storetest.Harness{
		Open: func(tb testing.TB) taskstore.Store {
			tb.Helper()
			return openOn(tb, servers.Take(tb))
		},
		Reopen: func(tb testing.TB, old taskstore.Store) taskstore.Store {
			tb.Helper()
			server := old.(onServer).server
			server.Restart(tb)
			return openOn(tb, server)
		},
		Orphan: orphan, Delay: delay, Long: testenv.IsLong(),
	}
	if runtime.GOOS == "linux" {
		h.Advance = func(tb testing.TB, s taskstore.Store, d time.Duration) {
			tb.Helper()
			s.(onServer).server.Advance(tb, d)
		}
	}
	storetest.Run(t, h)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	url := nodes[0].URL() + "?addr=" + nodes[1].Addr + "&addr=" + nodes[2].Addr
	storetest.Run(t, storetest.Harness{
		// The checks share the cluster; each has keys of its own.
		Open: func(tb testing.TB) taskstore.Store {
			tb.Helper()
			return open(tb, redisconn.Options{URL: url, Prefix: tb.Name() + ":"})
		},
		Orphan: orphan, Light: !testenv.IsLong(), Long: testenv.IsLong(),
	})
}
