package natsauth

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"sort"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Producers have an account of their own, without JetStream. JetStream publishes an
// acknowledgement to any reply subject that a publisher names, with the broker's
// permissions. Since submissions pass through a service import, that subject is in
// the producers' account, and cannot reach the streams, their API, agents or
// servers.
const (
	subjectSubmit   = "procfleet.submit"
	subjectFinished = "procfleet.task.finished"
)

// BrokerPath returns the path of the file to include in nats-server's configuration.
func (a *Authority) BrokerPath() string { return filepath.Join(a.dir, brokerFile) }

// account is one of the authority's accounts, with the name of its token file.
type account struct {
	name, file string
	pair       nkeys.KeyPair
	roles      []Role
	fill       func(*jwt.AccountClaims)
}

// accounts returns the accounts whose tokens change after a revocation, or when a
// release changes permissions.
func (a *Authority) accounts() []account {
	return []account{
		{"procfleet-producers", producersFile, a.producers, []Role{Producer}, a.importToProducers},
		{"procfleet", accountFile, a.account, ofFleet, exportFromFleet},
	}
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

// Limits of connections. NATS has no limit per user, only per account (at all
// servers of a cluster together) and per server. The limit of a server
// ([BrokerConnections]) exceeds the limits of the accounts together, so that users
// of the system account can still connect, and revoke a user that has exhausted
// the others.
const (
	// BrokerConnections is the max_connections of a server.
	BrokerConnections = 131_072
	// fleetConnections is the limit for agents, dispatchers and workers together.
	// Agents connected to a leaf node count only at their leaf node.
	fleetConnections = 120_000
	// leafConnections is the limit for servers that connect as leaf nodes.
	leafConnections = 4096
	// producerConnections is the limit for all producers together.
	producerConnections = 1024
)

// forever is a revocation time after the issue time of any credentials. Brokers
// compare the two, and the issuer's clock may have been ahead.
var forever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// Revoke makes brokers with the new account tokens reject users permanently and
// close their connections. Revoked keys are never reused: the next generation of a
// host has other keys. Revoke is idempotent.
func (a *Authority) Revoke(users ...string) error {
	return a.write(func(claims *jwt.AccountClaims) {
		for _, user := range users {
			claims.RevokeAt(user, forever)
		}
	})
}

// write updates the tokens of the accounts and the file for brokers.
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

// accountToken returns the new token of an account, or old if its content is
// already current: brokers prefer the newer of two tokens.
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

// same reports whether two tokens of an account have the same content, apart from
// revocations and issue times.
func same(a, b *jwt.AccountClaims) bool {
	sort.Sort(b.Exports) // Encode sorts the other token's
	sort.Sort(b.Imports)
	return reflect.DeepEqual(a.SigningKeys, b.SigningKeys) && reflect.DeepEqual(a.Exports, b.Exports) &&
		reflect.DeepEqual(a.Imports, b.Imports) && sameLimits(&a.Limits, &b.Limits)
}

// sameLimits compares limits as tokens have them: decoding a token leaves an empty map.
func sameLimits(a, b *jwt.OperatorLimits) bool {
	was, err1 := json.Marshal(a)
	is, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(was, is)
}
