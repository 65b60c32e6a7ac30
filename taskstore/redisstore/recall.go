package redisstore

import (
	"sync"
	"time"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore/internal/recent"
)

// recall is what this process remembers of one business. It spares reading
// anew what has not changed, which Redis is asked for each time.
type recall struct {
	mu       sync.Mutex
	topology markedTopology
	view     knownView
	loading  *loading // nil if nobody loads the view
}

// recall returns what is remembered of b.
func (s *Store) recall(b catalog.Business) *recall {
	s.recallEnd.Reset(recent.For)
	now := time.Now()
	s.recalls.Forget(now)
	return s.recalls.Use(b, now)
}

// forgetRecalls ends what is remembered when nobody asks for any business any
// more.
func (s *Store) forgetRecalls() { s.recalls.Forget(time.Now()) }
