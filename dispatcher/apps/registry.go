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

// Errors of [Registry.Application], [Registry.Verify] and [Registry.VerifySignature].
var (
	ErrUnknown = errors.New("there is no such application")
	ErrWrong   = errors.New("the secret or the signature is not that of the application")
	// ErrBusy means that the secret was not verified: too many calls wait for the
	// verification of secrets of this application.
	ErrBusy = errors.New("too many secrets of this application are being checked")
)

// Limits on the work that wrong secrets can cause.
const (
	// waiters is the maximum number of calls that wait for the verification of one
	// application's secret.
	waiters = 32
	// remembered is the number of wrong secrets per application that are rejected
	// without hashing them again.
	remembered = 32
)

// Registry holds the applications of the last valid version of the file. It is safe for
// concurrent use.
//
// The first successful verification of a secret caches a digest of the secret. From
// then on, a secret is compared with that digest, so only the first calls of an
// application cost an argon2 hash. At most GOMAXPROCS/2 hashes run at the same time,
// and at most one per application, so neither a flood of wrong secrets nor a single
// application delays the other callers.
type Registry struct {
	path  string
	key   [32]byte // random key of the digests; digests of another process do not match
	slots chan struct{}
	// Hashed, if not nil, is called before every argon2 hash. Set it before the first
	// call of Verify.
	Hashed func()

	current atomic.Pointer[map[string]*entry]
	seen    version // version of the file at the last read attempt; used only by Open and Refresh
}

// entry is an application with the verification state of its secret.
type entry struct {
	Application
	*proof
}

// proof is the verification state of one secret. It is reused when the file changes and
// the application's secret does not.
type proof struct {
	hash     *hashed
	verified atomic.Pointer[digest]
	checking chan struct{} // capacity 1; full while a secret is verified
	waiting  atomic.Int32

	mu    sync.Mutex
	wrong [remembered]digest // ring buffer
	next  int
}

type digest [sha256.Size]byte

// Open reads the file at a path and returns its Registry. It rejects a file that every
// account may read or that an account other than its owner may write.
func Open(path string) (*Registry, error) {
	r := &Registry{path: path, slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	_, _ = rand.Read(r.key[:]) // crypto/rand.Read never returns an error
	file, info, err := read(path)
	if err != nil {
		return nil, err
	}
	r.seen = versionOf(info)
	r.enforce(file)
	return r, nil
}

// Len returns the number of applications.
func (r *Registry) Len() int { return len(*r.current.Load()) }

// version identifies one state of the file.
type version struct {
	inode   uint64 // 0 on systems without inodes
	size    int64
	mode    os.FileMode
	changed int64 // modification time in Unix nanoseconds
}

func versionOf(info os.FileInfo) version {
	return version{inode: inodeOf(info), size: info.Size(), mode: info.Mode(), changed: info.ModTime().UnixNano()}
}

// Refresh reads the file again if it changed since the last call. If the new version is
// invalid, the previous applications stay in effect, and Refresh returns the error once
// for each version of the file. It must not be called concurrently.
func (r *Registry) Refresh() (changed bool, err error) {
	info, err := os.Stat(r.path)
	var now version // zero if the file is missing
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

// enforce replaces the applications with those of file.
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
			continue // unreachable: Parse rejects an invalid hash
		}
		after[a.Code] = &entry{a, &proof{hash: hash, checking: make(chan struct{}, 1)}}
	}
	r.current.Store(&after)
}

// Application returns the application with this code without verifying a secret. It
// returns [ErrUnknown] if there is none.
func (r *Registry) Application(code string) (*Application, error) {
	e := (*r.current.Load())[code]
	if e == nil {
		return nil, ErrUnknown
	}
	return &e.Application, nil
}

// Verify returns the application with this code if secret is its secret. It may block
// while an unverified secret is hashed, until ctx ends. The error is [ErrUnknown],
// [ErrWrong], [ErrBusy], or the cause of the end of ctx.
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
		return nil, ErrWrong // an application has exactly one secret
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

// check verifies a secret by hashing it, while no secret of the application was
// verified yet. Only one check per application runs at a time.
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
	if known := p.verified.Load(); known != nil { // another call verified a secret in the meantime
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

// remember adds the digest of a wrong secret. It replaces the oldest one.
func (p *proof) remember(given *digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong[p.next] = *given
	p.next = (p.next + 1) % remembered
}

// Watch calls Refresh at the given interval until ctx ends. It calls told after each
// change and each error. It blocks.
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
