package natsembed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/procfleet/procfleet/internal/natsauth"
)

// trust makes a server accept only users of an authority.
func trust(opts *server.Options, b *natsauth.Broker) error {
	if b == nil {
		return nil
	}
	operator, err := jwt.DecodeOperatorClaims(b.Operator)
	if err != nil {
		return fmt.Errorf("token of the operator: %w", err)
	}
	accounts := &server.MemAccResolver{}
	for name, token := range b.Accounts {
		if err := accounts.Store(name, token); err != nil {
			return fmt.Errorf("token of account %s: %w", name, err)
		}
	}
	opts.TrustedOperators, opts.SystemAccount, opts.AccountResolver = []*jwt.OperatorClaims{operator}, b.System, accounts
	return nil
}

// SetAccount applies an account's new token: it disconnects users that the token
// revokes, and applies changed permissions at once.
func (s *Server) SetAccount(name, token string) error {
	claims, err := jwt.DecodeAccountClaims(token)
	if err != nil {
		return fmt.Errorf("token of account %s: %w", name, err)
	}
	if err := s.server.AccountResolver().Store(name, token); err != nil {
		return fmt.Errorf("token of account %s: %w", name, err)
	}
	account, err := s.server.LookupAccount(name)
	if err != nil {
		return fmt.Errorf("account %s: %w", name, err)
	}
	s.server.UpdateAccountClaims(account, claims)
	return nil
}

// openAccount is the account of all clients on a server without an authority.
const openAccount = "$G"

// AdoptOpenStreams moves the streams of openAccount in storeDir to account, unless
// account has streams there. Without this move, a server that gets an authority
// would lose its stored messages. It must be called before the server starts.
func AdoptOpenStreams(storeDir, account string) error {
	folder := filepath.Join(storeDir, "jetstream")
	from, to := filepath.Join(folder, openAccount), filepath.Join(folder, account)
	if _, err := os.Stat(filepath.Join(from, "streams")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("move the streams to the account of NATS users: %w", err)
	}
	return nil
}
