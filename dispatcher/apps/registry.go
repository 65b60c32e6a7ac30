package apps

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // the published signature form requires SHA-1, which is safe in HMAC
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
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
	ErrWrong   = errors.New("the secret or the signature of the application is wrong")
	// ErrNoSigning means that the application has no signing key.
	ErrNoSigning = errors.New("the application has no signing key; create one with `procfleet app add --signing`")
	// ErrBusy means that the secret was not verified: too many calls wait for the
	// verification of secrets of this application.
	ErrBusy = errors.New("too many secrets of this application are waiting for verification")
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
	seen    os.FileInfo // of the file at the last read attempt, nil if it was missing; used only by Open and Refresh
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
	r.seen = info
	r.enforce(file)
	return r, nil
}

// Len returns the number of applications.
func (r *Registry) Len() int { return len(*r.current.Load()) }

// sameVersion reports whether two FileInfos describe the same state of the file; nil means
// that the file is missing.
func sameVersion(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

// Refresh reads the file again if it changed since the last call. If the new version is
// invalid, the previous applications stay in effect, and Refresh returns the error once
// for each version of the file. It must not be called concurrently.
func (r *Registry) Refresh() (changed bool, err error) {
	now, _ := os.Stat(r.path)
	if sameVersion(now, r.seen) {
		return false, nil
	}
	file, info, err := read(r.path)
	if info != nil {
		now = info
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
	if err := r.check(ctx, e.proof, secret, &given); err != nil {
		return nil, err
	}
	return &e.Application, nil
}

// VerifySignature returns the application with this code if signature is the base64
// HMAC-SHA1 of text under its signing key. The hash of a secret cannot verify an HMAC,
// so signing uses a separate key, stored in plain text. The error is [ErrUnknown],
// [ErrNoSigning] or [ErrWrong].
func (r *Registry) VerifySignature(code, text, signature string) (*Application, error) {
	e := (*r.current.Load())[code]
	switch {
	case e == nil:
		return nil, ErrUnknown
	case e.SigningKey == "":
		return nil, ErrNoSigning
	}
	given, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		return nil, ErrWrong
	}
	mac := hmac.New(sha1.New, []byte(e.SigningKey))
	mac.Write([]byte(text))
	if !hmac.Equal(mac.Sum(nil), given) {
		return nil, ErrWrong
	}
	return &e.Application, nil
}

func (r *Registry) digest(secret string) digest {
	var text [len(r.key) + maxSecret]byte
	n := copy(text[:], r.key[:])
	n += copy(text[n:], secret)
	return sha256.Sum256(text[:n])
}

// check verifies a secret, by hashing it if it is not known. Only one hash per
// application is computed at a time.
func (r *Registry) check(ctx context.Context, p *proof, secret string, given *digest) error {
	if known, err := p.known(given); known {
		return err
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
	if known, err := p.known(given); known { // another call hashed a secret in the meantime
		return err
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
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wrong[p.next] = *given // replaces the oldest one
		p.next = (p.next + 1) % remembered
		return ErrWrong
	}
	p.verified.Store(given)
	return nil
}

// known reports whether a secret was verified or rejected before; err is the result.
func (p *proof) known(given *digest) (known bool, err error) {
	if right := p.verified.Load(); right != nil {
		if subtle.ConstantTimeCompare(right[:], given[:]) == 1 {
			return true, nil
		}
		return true, ErrWrong // an application has exactly one secret
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found := 0
	for i := range p.wrong {
		found |= subtle.ConstantTimeCompare(p.wrong[i][:], given[:])
	}
	if found == 1 {
		return true, ErrWrong
	}
	return false, nil
}

// Watch calls Refresh at the given interval until ctx ends. It calls notify after each
// change and each error. It blocks.
func (r *Registry) Watch(ctx context.Context, every time.Duration, notify func(changed bool, err error)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if changed, err := r.Refresh(); changed || err != nil {
				notify(changed, err)
			}
		}
	}
}
