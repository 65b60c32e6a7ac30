package natsauth

import (
	"fmt"
	"path/filepath"
	"reflect"
	"sort"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Producers have an account of their own, without JetStream. JetStream sends its
// acknowledgement to any subject that a publisher names, with the rights of the
// broker. Through the service that the account imports, that is a subject of the
// producers' account: nothing there reaches the streams, their API, agents or
// servers.
const (
	subjectSubmit   = "procfleet.submit"
	subjectFinished = "procfleet.task.finished"
)

// BrokerPath is the file for nats-server to include.
func (a *Authority) BrokerPath() string { return filepath.Join(a.dir, brokerFile) }

// account is one of the authority's accounts and the file that has its token.
type account struct {
	name, file string
	pair       nkeys.KeyPair
	roles      []Role
	fill       func(*jwt.AccountClaims)
}

// accounts returns the accounts whose tokens change, with a revocation or with the
// rights of a release.
func (a *Authority) accounts() []account {
	return []account{
		{"procfleet-producers", producersFile, a.producers, []Role{Producer}, a.importToProducers},
		{"procfleet", accountFile, a.account, ofFleet, exportFromFleet},
	}
}

// accountOf returns the account of a role that is not of the system account.
func (a *Authority) accountOf(role Role) nkeys.KeyPair {
	if role == Producer {
		return a.producers
	}
	return a.account
}

func exportFromFleet(claims *jwt.AccountClaims) {
	claims.Limits.Conn, claims.Limits.LeafNodeConn = fleetConnections, leafConnections
	unlimited := jwt.JetStreamLimits{MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit, MaxAckPending: jwt.NoLimit}
	claims.Limits.JetStreamLimits = unlimited
	claims.Exports.Add(
		&jwt.Export{Name: "submissions", Subject: subjectSubmit, Type: jwt.Service},
		&jwt.Export{Name: "finished tasks", Subject: subjectFinished, Type: jwt.Stream},
		&jwt.Export{Name: "replies to submissions", Subject: producerInboxes + ".>", Type: jwt.Stream},
	)
}

func (a *Authority) importToProducers(claims *jwt.AccountClaims) {
	claims.Limits.Conn, claims.Limits.LeafNodeConn = producerConnections, 0
	fleet := public(a.account)
	claims.Imports.Add(
		&jwt.Import{Name: "submissions", Account: fleet, Subject: subjectSubmit, Type: jwt.Service},
		&jwt.Import{Name: "finished tasks", Account: fleet, Subject: subjectFinished, Type: jwt.Stream},
		&jwt.Import{Name: "replies to submissions", Account: fleet, Subject: producerInboxes + ".>", Type: jwt.Stream},
	)
}

// Limits of connections. NATS has none for a single user, only for an account at
// all servers of a cluster together and for a server. A server accepts more
// ([BrokerConnections]) than the accounts may have, so that users of the system
// account still connect, and can revoke the user that has opened the rest.
const (
	// BrokerConnections is max_connections of a server.
	BrokerConnections = 131_072
	// fleetConnections is the limit of agents, dispatchers and workers together.
	// Agents behind a leaf node count at their leaf node alone.
	fleetConnections = 120_000
	// leafConnections is the limit of servers that connect as leaf nodes.
	leafConnections = 4096
	// producerConnections is the limit of all producers together.
	producerConnections = 1024
)

// forever is later than the issue time of any credentials. Brokers compare the
// two, and the issuer's clock may have been ahead.
var forever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// Revoke makes brokers with the new accounts reject users for ever and close
// their connections. Their keys are never used again: a host that is
// revoked gets others with its next generation. It may be repeated.
func (a *Authority) Revoke(users ...string) error {
	return a.write(func(claims *jwt.AccountClaims) {
		for _, user := range users {
			claims.RevokeAt(user, forever)
		}
	})
}

// write updates the tokens of the accounts and the file that brokers include.
func (a *Authority) write(change func(*jwt.AccountClaims)) error {
	for _, of := range a.accounts() {
		err := datafile.Update(filepath.Join(a.dir, of.file), maxAccount, func(old []byte) ([]byte, error) {
			token, err := a.accountToken(of, string(old), change)
			return []byte(token), err
		})
		if err != nil {
			return err
		}
	}
	broker, err := a.Broker()
	if err != nil {
		return err
	}
	return datafile.Update(a.BrokerPath(), 2*maxAccount, func([]byte) ([]byte, error) { return broker.conf(), nil })
}

// accountToken returns the old token if it already has the wanted content:
// brokers take the newer of two.
func (a *Authority) accountToken(of account, old string, change func(*jwt.AccountClaims)) (string, error) {
	claims := jwt.NewAccountClaims(public(of.pair))
	var before *jwt.AccountClaims
	if old != "" {
		var err error
		if before, err = jwt.DecodeAccountClaims(old); err != nil || before.Subject != claims.Subject {
			return "", fmt.Errorf("%s is not the token of this authority's account", filepath.Join(a.dir, of.file))
		}
		claims.Revocations = before.Revocations
	}
	claims.Name = of.name
	of.fill(claims)
	for _, role := range of.roles {
		scope := jwt.NewUserScope()
		scope.Key, scope.Role, scope.Template = public(a.signing[role]), string(role), permissions(role, eachUser)
		claims.SigningKeys.AddScopedSigner(scope)
	}
	if change != nil {
		change(claims)
	} else if before != nil && same(before, claims) {
		return old, nil
	}
	return claims.Encode(a.operator)
}

// same reports whether two tokens of an account have the same content, apart
// from when they were made.
func same(a, b *jwt.AccountClaims) bool {
	sort.Sort(b.Exports) // as the encoded ones are
	sort.Sort(b.Imports)
	return reflect.DeepEqual(a.SigningKeys, b.SigningKeys) && reflect.DeepEqual(a.Exports, b.Exports) &&
		reflect.DeepEqual(a.Imports, b.Imports) && reflect.DeepEqual(a.Limits, b.Limits)
}
