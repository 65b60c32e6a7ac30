package natsauth

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/procfleet/procfleet/internal/datafile"
)

// Broker contains the configuration that NATS servers need to accept the users of an
// authority. It contains no secret.
type Broker struct {
	Operator string // token of the operator
	System   string // public key of the system account
	// Accounts maps the public keys of accounts to their tokens.
	Accounts map[string]string
	// Account is the public key of the account of the fleet and its streams.
	// Producers and the system account have other keys.
	Account string
}

// Broker returns the current configuration for NATS servers.
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
// revocations and permissions, in the order in which brokers must receive the tokens:
// an account that exports a subject before the accounts that import it.
func (b *Broker) Changing() []string {
	changing := []string{b.Account}
	for _, account := range slices.Sorted(maps.Keys(b.Accounts)) {
		if account != b.Account && account != b.System {
			changing = append(changing, account)
		}
	}
	return changing
}

// conf returns the content of the file that nats-server includes. The server's own
// configuration defines where accounts are stored.
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
	slices.Reverse(changing) // the fleet's account last: the configuration of leaf nodes names it
	for _, account := range changing {
		fmt.Fprintf(&text, "  %s: %s\n", account, b.Accounts[account])
	}
	text.WriteString("}\n")
	return []byte(text.String())
}
