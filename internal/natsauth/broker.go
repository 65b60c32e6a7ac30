package natsauth

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Broker is what a NATS server has to know of an authority. There is no secret
// in it.
type Broker struct {
	Operator string // token
	System   string // public key of the system account
	// Accounts are tokens by public key.
	Accounts map[string]string
	// Account is the public key of the account in which the fleet is, and its
	// streams. Producers, and the servers' own accounting, have others.
	Account string
}

// Broker returns what a NATS server has to know now.
func (a *Authority) Broker() (*Broker, error) {
	b := &Broker{
		Operator: a.operatorToken, System: public(a.system), Account: public(a.account),
		Accounts: map[string]string{public(a.system): a.systemToken},
	}
	for _, of := range a.accounts() {
		text, _, err := datafile.ReadPrivate(filepath.Join(a.dir, of.file), maxAccount)
		if err != nil {
			return nil, err
		}
		b.Accounts[public(of.pair)] = string(text)
	}
	return b, nil
}

// Changing returns the public keys of the accounts whose tokens change with
// revocations and releases, in the order in which brokers are given them: an
// account that exports before those that import.
func (b *Broker) Changing() []string {
	changing := []string{b.Account}
	for _, account := range slices.Sorted(maps.Keys(b.Accounts)) {
		if account != b.Account && account != b.System {
			changing = append(changing, account)
		}
	}
	return changing
}

// conf is what nats-server includes. Where accounts are kept is the server's own
// matter.
func (b *Broker) conf() []byte {
	var text strings.Builder
	fmt.Fprintf(&text, `# Users that NATS accepts; procfleet nats-auth makes this file. There is no secret in it.
# A server's own configuration includes it and says where accounts are kept:
#   resolver { type: full, dir: /data/accounts }
operator: %s
system_account: %s
resolver_preload: {
  %s: %s
`, b.Operator, b.System, b.System, b.Accounts[b.System])
	changing := b.Changing()
	slices.Reverse(changing) // the fleet's last: the configuration of leaf nodes names it
	for _, account := range changing {
		fmt.Fprintf(&text, "  %s: %s\n", account, b.Accounts[account])
	}
	text.WriteString("}\n")
	return []byte(text.String())
}
