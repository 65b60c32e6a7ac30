package redisstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/taskstore/storetest"
)

// asUser opens a store with a separate Redis user, whose rights a test changes.
func asUser(t *testing.T, server *redistest.Server) *redisstore.Store {
	t.Helper()
	server.Do(t, "ACL SETUSER fleet reset on >secret ~* &* +@all")
	return open(t, redisconn.Options{URL: strings.Replace(server.URL(), "//", "//fleet:secret@", 1)})
}

func TestUserThatLosesItsRightsUnderLoadAndGetsThemBackLosesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := asUser(t, server)
	l := startLoad(t, s)
	for name, change := range map[string]struct {
		lose, regain string
		reconnect    bool // the lost right affects only new connections
		says         string
	}{
		"commands":            {lose: "-@all", regain: "+@all", says: "NOPERM"},
		"commands of scripts": {lose: "-hset", regain: "+hset", says: "script"},
		"keys":                {lose: "resetkeys ~other:*", regain: "resetkeys ~*", says: "NOPERM"},
		"password":            {lose: "resetpass >changed", regain: ">secret", reconnect: true, says: "WRONGPASS"},
		"account":             {lose: "off", regain: "on", reconnect: true, says: "WRONGPASS"},
	} {
		l.more(t, 3)
		server.Do(t, "ACL SETUSER fleet "+change.lose)
		if change.reconnect {
			server.Do(t, "CLIENT KILL USER fleet")
		}
		before := l.refused.Load()
		testenv.Eventually(t, time.Minute, func() bool { return l.refused.Load() > before+10 }, "calls are refused for want of "+name)
		mustBeUnavailable(t, "create without "+name, func(ctx context.Context) error {
			_, _, err := s.Create(ctx, storetest.Draft(1))
			if err != nil && !strings.Contains(err.Error(), change.says) {
				t.Errorf("the error does not say %q: %v", change.says, err)
			}
			return err
		})
		server.Do(t, "ACL SETUSER fleet "+change.regain)
	}
	l.more(t, 3)
	l.audit(t, s, false)
}
