package apps

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Why a caller is not who it says.
var (
	ErrUnknown = errors.New("there is no such application")
	ErrWrong   = errors.New("the secret or the signature is not that of the application")
	// ErrBusy means that it was not found out: too many unknown secrets wait
	// to be checked.
	ErrBusy = errors.New("too many secrets of this application are being checked")
)

// Bounds of the work that wrong secrets make.
const (
	// waiters is how many may wait for one application's secret to be checked.
	waiters = 32
	// remembered is how many wrong secrets of an application are known to be
	// wrong without another look.
	remembered = 32
)

// Registry is the file as it is in force. It is safe for concurrent use.
//
// A secret that was verified once is known by its digest, and every other one
// is then wrong: only the first calls of an application cost an argon2 hash.
// Of those at most a half of the processors' number runs at once, and one for
// an application, so that neither a flood of wrong secrets nor one application
// keeps the others waiting.
type Registry struct {
	path  string
	key   [32]byte // digests are of no use outside this process
	slots chan struct{}
	// Hashed, if set, is told of every argon2 hash; set it before the first call.
	Hashed func()

	current atomic.Pointer[map[string]*entry]
	seen    version // of the last attempt to read; only for Open and Refresh
}

// entry is an application in force.
type entry struct {
	Application
	*proof
}

// proof is what is known of one secret. It outlives changes of the file that
// leave the secret alone.
type proof struct {
	hash     *hashed
	verified atomic.Pointer[digest]
	checking chan struct{} // holds one while a secret is checked
	waiting  atomic.Int32

	mu    sync.Mutex
	wrong [remembered]digest // a ring
	next  int
}

type digest [sha256.Size]byte

// Open reads the file at a path. It refuses a file that everybody may read or
// that others than its owner may write.
func Open(path string) (*Registry, error) {
	r := &Registry{path: path, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	_, _ = rand.Read(r.key[:]) // never fails: it would end the process
	file, info, err := read(path)
	if err != nil {
		return nil, err
	}
	r.seen = versionOf(info)
	r.enforce(file)
	return r, nil
}

// Len is the number of applications in force.
func (r *Registry) Len() int { return len(*r.current.Load()) }

// version tells one state of a file from another.
type version struct {
	inode   uint64 // 0 where files have none
	size    int64
	mode    os.FileMode
	changed int64 // nanoseconds
}

func versionOf(info os.FileInfo) version {
	return version{inode: inodeOf(info), size: info.Size(), mode: info.Mode(), changed: info.ModTime().UnixNano()}
}

// Refresh reads the file again if it changed since the last call. If what is
// there cannot be used, the error says why, once for each change, and what was
// in force stays so. It must not be called by two at a time.
func (r *Registry) Refresh() (changed bool, err error) {
	info, err := os.Stat(r.path)
	var now version // of a file that is missing: none
	if err == nil {
		now = versionOf(info)
	}
	if now == r.seen {
		return false, nil
	}
	file, info, err := read(r.path)
	if info != nil {
		now = versionOf(info)
	}
	r.seen = now
	if err != nil {
		return false, err
	}
	r.enforce(file)
	return true, nil
}

// enforce lets a file take the place of what was in force.
func (r *Registry) enforce(file *File) {
	before := r.current.Load()
	after := make(map[string]*entry, len(file.apps))
	for _, a := range file.apps {
		if before != nil {
			if old := (*before)[a.Code]; old != nil && old.Secret == a.Secret {
				after[a.Code] = &entry{a, old.proof}
				continue
			}
		}
		hash, err := parseHash(a.Secret)
		if err != nil {
			continue // Parse refuses such a file
		}
		after[a.Code] = &entry{a, &proof{hash: hash, checking: make(chan struct{}, 1)}}
	}
	r.current.Store(&after)
}

// Application returns an application that is believed without proof.
func (r *Registry) Application(code string) (*Application, error) {
	e := (*r.current.Load())[code]
	if e == nil {
		return nil, ErrUnknown
	}
	return &e.Application, nil
}

// Verify returns the application that has this secret. It may wait for the
// first check of a secret, until ctx ends.
func (r *Registry) Verify(ctx context.Context, code, secret string) (*Application, error) {
	e := (*r.current.Load())[code]
	switch {
	case e == nil:
		return nil, ErrUnknown
	case len(secret) > maxSecret:
		return nil, ErrWrong
	}
	given := r.digest(secret)
	if known := e.verified.Load(); known != nil {
		if subtle.ConstantTimeCompare(known[:], given[:]) == 1 {
			return &e.Application, nil
		}
		return nil, ErrWrong // one application has one secret
	}
	if err := r.check(ctx, e.proof, secret, &given); err != nil {
		return nil, err
	}
	return &e.Application, nil
}

func (r *Registry) digest(secret string) digest {
	var text [len(r.key) + maxSecret]byte
	n := copy(text[:], r.key[:])
	n += copy(text[n:], secret)
	return sha256.Sum256(text[:n])
}

// check finds out about a secret while none is verified.
func (r *Registry) check(ctx context.Context, p *proof, secret string, given *digest) error {
	if p.isWrong(given) {
		return ErrWrong
	}
	if p.waiting.Add(1) > waiters {
		p.waiting.Add(-1)
		return ErrBusy
	}
	defer p.waiting.Add(-1)
	select {
	case p.checking <- struct{}{}:
		defer func() { <-p.checking }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if known := p.verified.Load(); known != nil { // while we waited
		if subtle.ConstantTimeCompare(known[:], given[:]) == 1 {
			return nil
		}
		return ErrWrong
	}
	if p.isWrong(given) {
		return ErrWrong
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.Hashed != nil {
		r.Hashed()
	}
	if !p.hash.matches(secret) {
		p.remember(given)
		return ErrWrong
	}
	p.verified.Store(given)
	return nil
}

func (p *proof) isWrong(given *digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := 0
	for i := range p.wrong {
		found |= subtle.ConstantTimeCompare(p.wrong[i][:], given[:])
	}
	return found == 1
}

// remember keeps a wrong secret's digest in the place of the oldest.
func (p *proof) remember(given *digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong[p.next] = *given
	p.next = (p.next + 1) % remembered
}

// Watch refreshes until ctx ends, every so often, and tells each change and
// each version that cannot be used.
func (r *Registry) Watch(ctx context.Context, every time.Duration, told func(changed bool, err error)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if changed, err := r.Refresh(); changed || err != nil {
				told(changed, err)
			}
		}
	}
}
