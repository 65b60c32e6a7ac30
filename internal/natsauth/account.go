package natsauth

import (
	"fmt"
	"path/filepath"
	"reflect"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/procfleet/procfleet/internal/datafile"
)

// AccountPath is the file that has the account's token, which changes with
// every revocation.
func (a *Authority) AccountPath() string { return filepath.Join(a.dir, accountFile) }

// BrokerPath is the file for nats-server to include.
func (a *Authority) BrokerPath() string { return filepath.Join(a.dir, brokerFile) }

// Account is the account's token: what the roles may do and who is revoked.
func (a *Authority) Account() (string, error) {
	text, _, err := datafile.ReadPrivate(a.AccountPath(), maxAccount)
	return string(text), err
}

// forever is later than any time at which credentials say they were made.
// Brokers compare the two, and the clock of who made them may have been ahead.
var forever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// Revoke has brokers that get the account from now on refuse users for ever,
// and end their connections. Their keys are never used again: a host that is
// revoked gets others with its next generation. It may be repeated.
func (a *Authority) Revoke(users ...string) error {
	return a.write(func(claims *jwt.AccountClaims) {
		for _, user := range users {
			claims.RevokeAt(user, forever)
		}
	})
}

// write brings the account's token and what brokers include up to date.
func (a *Authority) write(change func(*jwt.AccountClaims)) error {
	var token string
	err := datafile.Update(a.AccountPath(), maxAccount, func(old []byte) (text []byte, err error) {
		token, err = a.accountToken(string(old), change)
		return []byte(token), err
	})
	if err != nil {
		return err
	}
	conf := a.brokerConf(token)
	return datafile.Update(a.BrokerPath(), maxAccount, func([]byte) ([]byte, error) { return conf, nil })
}

// accountToken is the old token if it says what is to be said: brokers take
// the newer of two.
func (a *Authority) accountToken(old string, change func(*jwt.AccountClaims)) (string, error) {
	claims := jwt.NewAccountClaims(public(a.account))
	var before *jwt.AccountClaims
	if old != "" {
		var err error
		if before, err = jwt.DecodeAccountClaims(old); err != nil || before.Subject != claims.Subject {
			return "", fmt.Errorf("%s is not the token of this authority's account", a.AccountPath())
		}
		claims.Revocations = before.Revocations
	}
	claims.Name = "procfleet"
	unlimited := jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit, MaxAckPending: jwt.NoLimit}
	claims.Limits.JetStreamLimits = unlimited
	for _, role := range scoped {
		scope := jwt.NewUserScope()
		scope.Key, scope.Role, scope.Template = public(a.signing[role]), string(role), permissions(role)
		claims.SigningKeys.AddScopedSigner(scope)
	}
	if change != nil {
		change(claims)
	} else if before != nil && reflect.DeepEqual(before.SigningKeys, claims.SigningKeys) {
		return old, nil
	}
	return claims.Encode(a.operator)
}
