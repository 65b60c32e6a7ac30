package natsembed

import (
	"fmt"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/procfleet/procfleet/internal/natsauth"
)

// trust makes a server accept only the users of an authority.
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

// SetAccount applies an account's new token: users that it revokes are
// disconnected, changed rights apply at once.
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
