package fleetkey

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/datafile"
)

// watchEvery is how often [Watched.Watch] checks its file.
const watchEvery = time.Second

// maxFile bounds a file in bytes; that is enough for a ring with 100,000
// generations.
const maxFile = 4 << 20

// Watched is the parsed content of a file, reloaded when the file changes. It is
// safe for concurrent use.
type Watched[T any] struct {
	path    string
	parse   func([]byte) (T, error)
	current atomic.Pointer[T]
	seen    os.FileInfo // of the last attempt to read; nil if there was no file. Only for Watch.
}

// OpenRing reads the ring in a file; see [ReadRing].
func OpenRing(path string) (*Watched[*Ring], error) { return open(path, Parse) }

// OpenIdentity reads the identity of one host in a file; see [ReadIdentity]. It
// rejects the identity of another host, also in a reload.
func OpenIdentity(path, host string) (*Watched[*Identity], error) {
	return open(path, func(text []byte) (*Identity, error) {
		identity, err := ParseIdentity(text)
		if err == nil && identity.Host.Name() != host {
			return nil, fmt.Errorf("it is the identity of host %s, and this agent runs for %s: replace the file by the identity of this host, or restart the agent to run as the other", identity.Host.Name(), host)
		}
		return identity, err
	})
}

// ReadRing reads the ring in a file. It rejects a file that everybody can read,
// or that others than its owner can write. The errors name no secret.
func ReadRing(path string) (*Ring, error) {
	ring, _, err := read(path, Parse)
	return ring, err
}

// ReadIdentity reads the identity in a file, as [ReadRing] does a ring.
func ReadIdentity(path string) (*Identity, error) {
	identity, _, err := read(path, ParseIdentity)
	return identity, err
}

func open[T any](path string, parse func([]byte) (T, error)) (*Watched[T], error) {
	value, info, err := read(path, parse)
	if err != nil {
		return nil, err
	}
	w := &Watched[T]{path: path, parse: parse, seen: info}
	w.current.Store(&value)
	return w, nil
}

// Current returns the last valid content.
func (w *Watched[T]) Current() T { return *w.current.Load() }

// Watch reloads the file when it changes, checking every second, until ctx ends.
// An invalid file is logged once for each change, and the previous content stays
// in use.
func (w *Watched[T]) Watch(ctx context.Context, log logrus.FieldLogger) {
	log = log.WithField("file", w.path)
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch changed, err := w.refresh(); {
		case err != nil:
			log.WithError(err).Error("key file reload failed, keeping the previous keys")
		case changed:
			log.Info("key file reloaded")
		}
	}
}

// refresh reloads the file if it changed since the last call. It returns an error
// once for each invalid change.
func (w *Watched[T]) refresh() (changed bool, err error) {
	info, err := os.Stat(w.path)
	if err != nil {
		info = nil
	}
	if same(info, w.seen) {
		return false, nil
	}
	value, info, err := read(w.path, w.parse)
	w.seen = info
	if err != nil {
		return false, err
	}
	w.current.Store(&value)
	return true, nil
}

// same reports whether a file is unchanged.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// read also returns the state of the file that the value is from; nil without a
// file.
func read[T any](path string, parse func([]byte) (T, error)) (value T, info os.FileInfo, err error) {
	text, info, err := datafile.ReadPrivate(path, maxFile)
	if err != nil {
		return value, info, err
	}
	if value, err = parse(text); err != nil {
		return value, info, fmt.Errorf("%s: %w", path, err)
	}
	return value, info, nil
}
