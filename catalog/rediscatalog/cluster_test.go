package rediscatalog_test

import (
	"testing"
	"time"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

func TestBusinessWhoseSlotMovesIsRiddenOut(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 2)
	s := open(t, redisconn.Options{URL: nodes[0].URL() + "?addr=" + nodes[1].Addr, Patience: 30 * time.Second})
	ids := editAll(t, s, namedAll(600)...)
	shows(t, s, "p1x")
	m := redistest.BeginMigration(t, nodes, s.BusinessKey(business())+"templates")
	m.Move(t, s.BusinessKey(business())+"claims")

	done := make(chan error, 2)
	go func() {
		_, err := s.EditTemplates(t.Context(), business(), []catalog.Edit{rename(ids[0], "p1x"), named("p1x-new")})
		done <- err
	}()
	go func() {
		_, err := s.DeleteTemplate(t.Context(), business(), ids[1])
		done <- err
	}()
	testenv.Eventually(t, 30*time.Second, func() bool { return redistest.Refusals(t, m.From, "TRYAGAIN") > 10 }, "the slot is found half way")
	m.Finish(t)
	for range 2 {
		mustNot(t, <-done)
	}
	shows(t, s, "p1x", "p1x", "p1x-new")
	if got := len(found(t, s, "")); got != 600 {
		t.Errorf("found %d processes of 600", got)
	}
}
