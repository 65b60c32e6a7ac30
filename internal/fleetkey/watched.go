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

// watchEvery is the interval at which [Watched.Watch] checks its file.
const watchEvery = time.Second

// maxFile is the maximum size of a file in bytes, enough for a ring with 100,000
// generations.
const maxFile = 4 << 20

// Watched is the parsed content of a file, reloaded when the file changes. It is
// safe for concurrent use.
type Watched[T any] struct {
	path    string
	parse   func([]byte) (T, error)
	current atomic.Pointer[T]
	seen    os.FileInfo // state at the last attempt to read; nil if there was no file. Only for Watch.
}

// OpenRing returns the ring in a file; see [ReadRing].
func OpenRing(path string) (*Watched[*Ring], error) { return open(path, Parse) }

// OpenIdentity returns the identity of host in a file; see [ReadIdentity]. It
// rejects the identity of another host, also when reloading.
func OpenIdentity(path, host string) (*Watched[*Identity], error) {
	return open(path, func(text []byte) (*Identity, error) {
		identity, err := ParseIdentity(text)
		if err == nil && identity.Host.Name() != host {
			return nil, fmt.Errorf("it is the identity of host %s, and this agent runs for %s: replace the file by the identity of this host, or restart the agent to run as the other", identity.Host.Name(), host)
		}
		return identity, err
	})
}

// ReadRing reads a ring from a file. It rejects a file that everybody can read, or
// that users other than its owner can write. The errors contain no secret.
func ReadRing(path string) (*Ring, error) {
	ring, _, err := read(path, Parse)
	return ring, err
}

// ReadIdentity reads an identity from a file, with the checks of [ReadRing].
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

// Watch checks the file every second and reloads it after a change, until ctx
// ends. An invalid file is logged once per change, and the previous content stays
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
// once per invalid change.
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

// same reports whether two states belong to an unchanged file.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// read returns the value in a file and the state of the file; nil if the file does
// not exist.
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
