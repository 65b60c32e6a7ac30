package redisstore_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
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

func open(t testing.TB, opt redisstore.Options) *redisstore.Store {
	t.Helper()
	opt.Log = testenv.Log(t)
	s, err := redisstore.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a test may have closed it
	return s
}

func openOn(t testing.TB, server *redistest.Server) onServer {
	t.Helper()
	return onServer{Store: open(t, redisstore.Options{URL: server.URL()}), server: server}
}

func orphan(t testing.TB, s taskstore.Store, d taskstore.Draft) procfleet.TaskID {
	t.Helper()
	id, err := s.(interface {
		Orphan(context.Context, taskstore.Draft) (procfleet.TaskID, error)
	}).Orphan(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	h := storetest.Harness{
		Open: func(t testing.TB) taskstore.Store { return openOn(t, redistest.Start(t)) },
		Reopen: func(t testing.TB, old taskstore.Store) taskstore.Store {
			server := old.(onServer).server
			server.Restart(t)
			return openOn(t, server)
		},
		Orphan: orphan,
	}
	if runtime.GOOS == "linux" {
		clock := redistest.BuildClock(t)
		h.Open = func(t testing.TB) taskstore.Store { return openOn(t, clock.Start(t)) }
		h.Advance = func(t testing.TB, s taskstore.Store, d time.Duration) { s.(onServer).server.Advance(t, d) }
	}
	storetest.Run(t, h)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	url := nodes[0].URL() + "?addr=" + nodes[1].Addr + "&addr=" + nodes[2].Addr
	storetest.Run(t, storetest.Harness{
		// The checks share the cluster; each has keys of its own.
		Open: func(t testing.TB) taskstore.Store {
			return open(t, redisstore.Options{URL: url, Prefix: t.Name() + ":"})
		},
		Orphan: orphan,
	})
}
