package proc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoAccount says that the host knows no account of a name.
// It is an [ErrSetup].
var ErrNoAccount error = marked{err: errors.New("no such account on this host"), mark: ErrSetup}

const (
	// accountTimeout bounds one lookup: a directory service that is down makes
	// the C library wait for minutes.
	accountTimeout = 5 * time.Second

	// accountTTL is how long an answer is used again.
	accountTTL = 10 * time.Minute
)

// Account is a user of this host as a command needs it.
type Account struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // all groups, the primary one included
	Home   string
	Shell  string // shell that runs its commands; /bin/sh when its own is none, such as nologin
}

// Accounts looks up accounts and remembers them for ten minutes. It reads
// /etc/passwd itself and asks getent for accounts of a directory service, since
// a statically linked program cannot load the host's name service modules.
type Accounts struct {
	now func() time.Time

	mu    sync.Mutex
	known map[string]knownAccount
}

type knownAccount struct {
	account Account
	until   time.Time
}

// NewAccounts returns an empty cache.
func NewAccounts() *Accounts {
	return &Accounts{now: time.Now, known: map[string]knownAccount{}}
}

// Lookup resolves an account; "" is the account the agent itself runs as. It
// blocks at most 5 s. An unknown name gives ErrNoAccount.
func (a *Accounts) Lookup(ctx context.Context, name string) (Account, error) {
	a.mu.Lock()
	hit, ok := a.known[name]
	a.mu.Unlock()
	if ok && a.now().Before(hit.until) {
		return hit.account, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, accountTimeout,
		fmt.Errorf("the host's name service did not answer within %s", accountTimeout))
	defer cancel()
	account, err := resolveAccount(ctx, name)
	if err != nil {
		return Account{}, fmt.Errorf("account %q: %w", name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[name] = knownAccount{account: account, until: a.now().Add(accountTTL)}
	return account, nil
}
