package natsauth

import (
	"fmt"
	"strings"
)

// Broker is what a NATS server has to know of an authority. There is no secret
// in it.
type Broker struct {
	Operator string // token
	System   string // public key of the system account
	// Accounts are tokens by public key.
	Accounts map[string]string
	// Account is the public key of the account in which the fleet is.
	Account string
}

// Broker returns what a NATS server has to know now.
func (a *Authority) Broker() (*Broker, error) {
	token, err := a.Account()
	if err != nil {
		return nil, err
	}
	return a.broker(token), nil
}

func (a *Authority) broker(account string) *Broker {
	return &Broker{
		Operator: a.operatorToken, System: public(a.system), Account: public(a.account),
		Accounts: map[string]string{public(a.system): a.systemToken, public(a.account): account},
	}
}

// brokerConf is what nats-server includes. Where accounts are kept is the
// server's own matter.
func (a *Authority) brokerConf(account string) []byte {
	b := a.broker(account)
	var text strings.Builder
	fmt.Fprintf(&text, `# Whom NATS believes; procfleet nats-auth makes this file. There is no secret in it.
# A server's own configuration includes it and says where accounts are kept:
#   resolver { type: full, dir: /data/accounts }
operator: %s
system_account: %s
resolver_preload: {
  %s: %s
  %s: %s
}
`, b.Operator, b.System, b.System, b.Accounts[b.System], b.Account, b.Accounts[b.Account])
	return []byte(text.String())
}
