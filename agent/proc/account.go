package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrNoAccount says that the host knows no account of a name.
var ErrNoAccount = errors.New("no such account on this host")

const (
	// accountTimeout bounds one lookup: a directory service that is down makes
	// the C library wait for minutes.
	accountTimeout = 5 * time.Second

	// accountTTL is how long an answer is used again.
	accountTTL = 10 * time.Minute
)

// DefaultAccount runs the commands of a spec that names no account.
const DefaultAccount = "root"

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

func resolveAccount(ctx context.Context, name string) (Account, error) {
	if strings.ContainsAny(name, ":\n\x00") || strings.HasPrefix(name, "-") {
		return Account{}, ErrNoAccount
	}
	line, err := passwdLine(ctx, name)
	if err != nil {
		return Account{}, err
	}
	account, err := parsePasswd(line)
	if err != nil {
		return Account{}, err
	}
	account.Groups, err = groupsOf(ctx, account)
	return account, err
}

// passwdLine finds the passwd(5) line of a name, or of the agent's own uid.
func passwdLine(ctx context.Context, name string) (string, error) {
	field, want := 0, name
	if name == "" {
		field, want = 2, strconv.Itoa(os.Geteuid())
	}
	text, err := os.ReadFile("/etc/passwd")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) == 7 && fields[field] == want {
			return strings.Join(fields, ":"), nil
		}
	}
	line, err := askHost(ctx, "getent", "passwd", want)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil || line == "" {
		return "", ErrNoAccount
	}
	return line, nil
}

func parsePasswd(line string) (Account, error) {
	fields := strings.Split(strings.TrimSpace(line), ":")
	if len(fields) != 7 {
		return Account{}, fmt.Errorf("unexpected passwd entry with %d fields", len(fields))
	}
	uid, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("uid of the passwd entry: %w", err)
	}
	gid, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return Account{}, fmt.Errorf("gid of the passwd entry: %w", err)
	}
	return Account{
		Name: fields[0], UID: uint32(uid), GID: uint32(gid),
		Home: fields[5], Shell: usableShell(fields[6]),
	}, nil
}

// usableShell keeps an account's shell when it is one that understands
// `-c line`; service accounts have nologin or false.
func usableShell(shell string) string {
	if slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh"}, path.Base(shell)) {
		if info, err := os.Stat(shell); err == nil && info.Mode()&0o111 != 0 {
			return shell
		}
	}
	return "/bin/sh"
}

// groupsOf asks the host for every group of the account. Running with fewer
// groups than the account has would fail later and elsewhere, so no answer is
// an error.
func groupsOf(ctx context.Context, account Account) ([]uint32, error) {
	text, err := askHost(ctx, "id", "-G", account.Name)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list its groups: %w", err)
	}
	groups := []uint32{account.GID}
	for word := range strings.FieldsSeq(text) {
		gid, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("list its groups: %w", err)
		}
		if !slices.Contains(groups, uint32(gid)) {
			groups = append(groups, uint32(gid))
		}
	}
	return groups, nil
}

func (a Account) inGroup(gid uint32) bool { return slices.Contains(a.Groups, gid) }
