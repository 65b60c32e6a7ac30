package proc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoAccount is returned for an unknown account name. It wraps [ErrSetup].
var ErrNoAccount error = marked{err: errors.New("no such account on this host"), mark: ErrSetup}

const (
	// accountTimeout bounds one lookup: a directory service that is down makes
	// the C library wait for minutes.
	accountTimeout = 5 * time.Second

	// accountTTL is the lifetime of a cached account.
	accountTTL = 10 * time.Minute
)

// Account is a user account of this host.
type Account struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // all group ids, including GID
	Home   string
	Shell  string // shell of the account's commands; /bin/sh if the login shell runs none (nologin)
}

// Accounts looks up accounts and caches them for ten minutes. It reads /etc/passwd and
// runs getent for accounts of a directory service, since a statically linked program
// cannot load the host's name service modules.
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

// Lookup returns the account called name; "" means the agent's own account. It blocks for
// at most 5 s. For an unknown name it returns [ErrNoAccount].
func (a *Accounts) Lookup(ctx context.Context, name string) (Account, error) {
	a.mu.Lock()
	hit, ok := a.known[name]
	a.mu.Unlock()
	if ok && a.now().Before(hit.until) {
		return hit.account, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, accountTimeout,
		fmt.Errorf("the host's name service did not respond within %s", accountTimeout))
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
