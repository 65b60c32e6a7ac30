package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// pushQuiet is the time without a further reply after which the list of servers counts as
// complete.
const pushQuiet = time.Second

func newNATSAuthPush(dir *string) *cobra.Command {
	var p natsPush
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Send revocations and the rights of this program to brokers",
		Long: `Send the current accounts, with revocations and the rights of roles in this release, to brokers that store accounts
(resolver type full). One server forwards them to its cluster; push to each leaf node separately. Brokers disconnect
revoked users at once. An unavailable broker receives the accounts from the others later.`,
		Example: "  procfleet nats-auth push --nats nats://10.0.0.9:4222 --nats-auth nats-auth",
		RunE: func(cmd *cobra.Command, _ []string) error {
			authority, err := openAuthority(*dir, natsauth.Open)
			if err != nil {
				return err
			}
			return p.run(cmd.Context(), authority, cmd.ErrOrStderr())
		},
	}
	connflags.NATS(cmd.Flags(), &p.url, &p.tls)
	return cmd
}

// natsPush sends account tokens to brokers.
type natsPush struct {
	url string
	tls tlsflags.Client
}

// register adds the flags of commands that push only if --nats is given.
func (p *natsPush) register(flags *pflag.FlagSet) {
	flags.StringVar(&p.url, "nats", "", "URL of one NATS server of the cluster to notify")
	p.tls.Register(flags, "nats", "NATS")
}

func (p *natsPush) run(ctx context.Context, authority *natsauth.Authority, out io.Writer) error {
	broker, err := authority.Broker()
	if err != nil {
		return err
	}
	conn, err := p.connect(ctx, authority)
	if err != nil {
		return err
	}
	defer conn.Close()
	servers, err := gatherFrom(ctx, conn, "$SYS.REQ.SERVER.PING", "", 0)
	if err != nil {
		return fmt.Errorf("list the servers: %w", err)
	}
	for _, account := range broker.Changing() {
		updated, err := gatherFrom(ctx, conn, "$SYS.REQ.CLAIMS.UPDATE", broker.Accounts[account], len(servers))
		if err != nil {
			return fmt.Errorf("send account %s to the servers: %w", account, err)
		}
		for _, name := range servers {
			if !slices.Contains(updated, name) {
				return fmt.Errorf("NATS server %s did not update account %s: does its configuration have a resolver of type full?", name, account)
			}
		}
	}
	fmt.Fprintf(out, "%d NATS servers have the accounts: %s\n", len(servers), servers)
	return nil
}

func (p *natsPush) connect(ctx context.Context, authority *natsauth.Authority) (*nats.Conn, error) {
	credentials, err := authority.NewUser(natsauth.Push, "push", 0, time.Hour)
	if err != nil {
		return nil, err
	}
	user, _, err := natsauth.ParseCredentials([]byte(credentials))
	if err != nil {
		return nil, err
	}
	files, err := p.tls.OpenAtOnce()
	if err != nil {
		return nil, command.Usagef("%w", err)
	}
	cfg := natsconn.Config{
		URL: p.url, TLS: files, Name: "nats-auth push",
		Credentials: func() ([]byte, error) { return []byte(credentials), nil },
		InboxPrefix: natsauth.InboxPrefix(natsauth.Push, user),
	}
	if err := cfg.Validate(); err != nil {
		return nil, command.Usagef("--nats: %w", err)
	}
	return connectBriefly(ctx, cfg)
}

// sysReply is a server's reply to a request on the system account.
type sysReply struct {
	Server struct {
		Name string `json:"name"`
	} `json:"server"`
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
}

// gatherFrom sends a request to all servers and returns the names of the servers that
// reply. It waits for the expected number of replies, or, if expected is 0, until no
// further replies arrive.
func gatherFrom(ctx context.Context, conn *nats.Conn, subject, body string, expected int) ([]string, error) {
	inbox := conn.NewInbox()
	sub, err := conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe()
	if err := conn.PublishRequest(subject, inbox, []byte(body)); err != nil {
		return nil, err
	}
	var names []string
	wait := natsPatience // for the first reply
	for expected == 0 || len(names) < expected {
		ctx, cancel := context.WithTimeout(ctx, wait)
		msg, err := sub.NextMsgWithContext(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && expected == 0 && len(names) > 0 {
			break
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
			return names, nil // the caller reports missing servers
		}
		if err != nil {
			return nil, err
		}
		var reply sysReply
		if err := json.Unmarshal(msg.Data, &reply); err != nil {
			return nil, fmt.Errorf("decode a server's reply: %w", err)
		}
		if reply.Error != nil {
			return nil, fmt.Errorf("NATS server %s: %s", reply.Server.Name, reply.Error.Description)
		}
		names = append(names, reply.Server.Name)
		if expected == 0 {
			wait = pushQuiet
		}
	}
	return names, nil
}
