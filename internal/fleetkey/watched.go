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

// watchEvery is how often [Watched.Watch] looks at its file.
const watchEvery = time.Second

// maxFile bounds a file in bytes; a ring's has room for 100,000 generations.
const maxFile = 4 << 20

// Watched is what a file says, read again when the file changed. It is safe
// for concurrent use.
type Watched[T any] struct {
	path    string
	parse   func([]byte) (T, error)
	current atomic.Pointer[T]
	seen    os.FileInfo // of the last attempt to read; nil if there was no file. Only for Watch.
}

// OpenRing reads the ring in a file; see [ReadRing].
func OpenRing(path string) (*Watched[*Ring], error) { return open(path, Parse) }

// OpenIdentity reads the identity of one host in a file; see [ReadIdentity]. A
// file that has come to be that of another host cannot be used.
func OpenIdentity(path, host string) (*Watched[*Identity], error) {
	return open(path, func(text []byte) (*Identity, error) {
		identity, err := ParseIdentity(text)
		if err == nil && identity.Host.Name() != host {
			return nil, fmt.Errorf("it is the identity of host %s, and this agent is that of %s: give it that of this host, or restart it to be the other", identity.Host.Name(), host)
		}
		return identity, err
	})
}

// ReadRing reads the ring in a file. A file that everybody may read, or that
// others than its owner may write, is refused. The errors name no secret.
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

// Current is what the file said when it could last be used.
func (w *Watched[T]) Current() T { return *w.current.Load() }

// Watch looks every second whether the file changed and reads it again, until
// ctx ends. A file that cannot be used is told in the log, once for each
// change, and what was there before stays in force.
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

// refresh reads the file again if it changed since the last call. The error
// says once for each change why it cannot be used.
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

// same reports whether two looks at a file saw the same state of it.
func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// read also says of which state of the file the value is; nil if there is no
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
