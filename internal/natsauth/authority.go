// Package natsauth creates the NATS users of a fleet and defines their permissions,
// by NATS' decentralized authentication: brokers know one operator and its
// accounts, and accept every user that a key of an account has signed. So a host is
// enrolled without contact to a broker, and no broker has a list of hosts.
//
// An [Authority] is a folder of keys. Permissions are not in the users' own tokens
// but in the accounts, one set per [Role]: another subject changes the account ([Open])
// and no user.
//
// A host's user is derived from a secret of the authority, the host and its
// generation (see package fleetkey). Enrolling a host again yields the same user,
// raising its generation a different one. So revocation needs no list of enrolled
// hosts.
package natsauth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Files in the folder of an authority, in addition to those of [Authority.WriteUser].
const (
	keysFile = "authority.yaml"
	// accountFile contains the token of the fleet's account with its revocations,
	// producersFile the token of the producers' account.
	accountFile   = "account.jwt"
	producersFile = "producers.jwt"
	// brokerFile is included in nats-server's configuration.
	brokerFile = "broker.conf"
)

const (
	maxKeysFile = 64 << 10
	// maxAccount allows more revocations than fit into one message to a broker.
	maxAccount = 16 << 20
	secretSize = 32
)

// Authority issues NATS users. It is safe for concurrent use, also by several
// processes.
type Authority struct {
	dir                       string
	operator, system, account nkeys.KeyPair
	producers                 nkeys.KeyPair
	signing                   map[Role]nkeys.KeyPair
	hosts                     []byte // secret from which the users of hosts are derived

	operatorToken, systemToken string
}

// authorityFile is the stored form of an authority: YAML in a private file. Keys are
// nkeys seeds.
type authorityFile struct {
	Operator  string          `json:"operator"`
	System    string          `json:"system"`
	Account   string          `json:"account"`
	Producers string          `json:"producers"`
	Signing   map[Role]string `json:"signing"`
	Hosts     string          `json:"hosts"` // base64 of 32 random bytes
	// The tokens of the operator and the system account never change.
	OperatorToken string `json:"operator_token"`
	SystemToken   string `json:"system_token"`
}

// errExists is the error of [Create] for a folder that contains an authority.
var errExists = errors.New("an authority exists already; a new one would invalidate all its users")

// Create creates an authority in dir, and dir itself if it is missing. It never
// replaces an authority.
func Create(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := newAuthorityFile()
	if err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, keysFile)
	err = datafile.Update(path, maxKeysFile, func(old []byte) ([]byte, error) {
		if old != nil {
			return nil, fmt.Errorf("%s: %w", path, errExists)
		}
		return text, nil
	})
	if err != nil {
		return nil, err
	}
	return Open(dir)
}

// OpenOrCreate opens the authority in dir, or creates one.
func OpenOrCreate(dir string) (*Authority, error) {
	a, err := Create(dir)
	if errors.Is(err, errExists) {
		return Open(dir)
	}
	return a, err
}

// Open opens the authority in dir. If the permissions of this build differ from those in
// the stored accounts, it updates the accounts. The errors contain no secret.
func Open(dir string) (*Authority, error) {
	path := filepath.Join(dir, keysFile)
	text, _, err := datafile.ReadPrivate(path, maxKeysFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no authority in %s: make it with `procfleet nats-auth init --nats-auth %s`: %w", dir, dir, err)
	}
	if err != nil {
		return nil, err
	}
	var file authorityFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%s is not a file of an authority", path)
	}
	a := &Authority{dir: dir}
	if err := a.read(&file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, a.write(nil)
}

func newAuthorityFile() (*authorityFile, error) {
	operator, err := nkeys.CreateOperator()
	if err != nil {
		return nil, err
	}
	system, err := nkeys.CreateAccount()
	if err != nil {
		return nil, err
	}
	file := &authorityFile{Operator: seed(operator), System: seed(system), Signing: map[Role]string{}}
	if file.OperatorToken, file.SystemToken, err = tokens(operator, system); err != nil {
		return nil, err
	}
	seeds := make([]string, 2+len(scoped))
	for i := range seeds {
		pair, err := nkeys.CreateAccount()
		if err != nil {
			return nil, err
		}
		seeds[i] = seed(pair)
	}
	file.Account, file.Producers = seeds[0], seeds[1]
	for i, role := range scoped {
		file.Signing[role] = seeds[2+i]
	}
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret) // never fails: it would crash the process
	file.Hosts = base64.StdEncoding.EncodeToString(secret)
	return file, nil
}

// tokens returns the tokens of an operator and of its system account.
func tokens(operator, system nkeys.KeyPair) (operatorToken, systemToken string, err error) {
	o := jwt.NewOperatorClaims(public(operator))
	o.Name, o.SystemAccount = "procfleet", public(system)
	if operatorToken, err = o.Encode(operator); err != nil {
		return "", "", err
	}
	s := jwt.NewAccountClaims(public(system))
	s.Name = "SYS"
	systemToken, err = s.Encode(operator)
	return operatorToken, systemToken, err
}

func (a *Authority) read(file *authorityFile) (err error) {
	if a.operator, err = openSeed("operator", file.Operator, nkeys.PrefixByteOperator); err != nil {
		return err
	}
	if a.system, err = openSeed("system", file.System, nkeys.PrefixByteAccount); err != nil {
		return err
	}
	if a.account, err = openSeed("account", file.Account, nkeys.PrefixByteAccount); err != nil {
		return err
	}
	if a.producers, err = openSeed("producers", file.Producers, nkeys.PrefixByteAccount); err != nil {
		return err
	}
	a.signing = map[Role]nkeys.KeyPair{}
	for _, role := range scoped {
		if a.signing[role], err = openSeed("signing."+string(role), file.Signing[role], nkeys.PrefixByteAccount); err != nil {
			return err
		}
	}
	a.operatorToken, a.systemToken = file.OperatorToken, file.SystemToken
	a.hosts, err = base64.StdEncoding.DecodeString(file.Hosts)
	if err != nil || len(a.hosts) != secretSize {
		return fmt.Errorf("hosts: it is not the base64 of %d bytes", secretSize)
	}
	return nil
}

func openSeed(name, text string, kind nkeys.PrefixByte) (nkeys.KeyPair, error) {
	found, _, err := nkeys.DecodeSeed([]byte(text))
	if err != nil || found != kind {
		return nil, fmt.Errorf("%s: it is not a seed of this kind of key", name)
	}
	return nkeys.FromSeed([]byte(text))
}

// public returns the public form of a key that this package has created or
// validated, so that the conversion cannot fail.
func public(pair nkeys.KeyPair) string {
	key, err := pair.PublicKey()
	if err != nil {
		panic("natsauth: " + err.Error())
	}
	return key
}

func seed(pair nkeys.KeyPair) string {
	text, err := pair.Seed()
	if err != nil {
		panic("natsauth: " + err.Error())
	}
	return string(text)
}
