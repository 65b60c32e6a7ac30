package dispatcher

import (
	"crypto/sha256"
	"sync"
	"time"
)

// replaysAtOnce bounds each half of what is remembered of signatures. Only good
// ones take room, so that only whoever can sign can have others forgotten.
const replaysAtOnce = 100_000

// replays remembers the digests of signed requests for as long as their
// signatures could count. Its zero value is ready.
type replays struct {
	mu           sync.Mutex
	newer, older map[[sha256.Size]byte]struct{}
	since        time.Time // when newer was begun
}

// first reports whether a digest comes for the first time.
func (r *replays) first(d [sha256.Size]byte, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A clock that is ahead may make a signature that counts for twice its age.
	if r.newer == nil || now.Sub(r.since) > 2*signatureAge || len(r.newer) >= replaysAtOnce {
		r.newer, r.older, r.since = make(map[[sha256.Size]byte]struct{}), r.newer, now
	}
	for _, known := range []map[[sha256.Size]byte]struct{}{r.newer, r.older} {
		if _, there := known[d]; there {
			return false
		}
	}
	r.newer[d] = struct{}{}
	return true
}
