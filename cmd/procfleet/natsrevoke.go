package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// natsRevokeFlags are the flags of `nats-auth revoke`.
type natsRevokeFlags struct {
	users, files []string
	push         natsPush
}

func newNATSAuthRevoke(dir *string) *cobra.Command {
	var f natsRevokeFlags
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "Make NATS users worthless that are no agents'",
		Long: `Make NATS users worthless, for example because their credentials were stolen: those that procfleet nats-auth
user made under a name, or whose credentials are in a file. Brokers that are reached with --nats end their
connections at once; procfleet up with this authority does so by itself.

If server.creds in the authority's folder was that of a revoked user a new one is made, which dispatchers and
workers take without a restart. To change it without a gap, first give them one
of nats-auth user server --name servers-2, and then revoke the user called server.`,
		Example: `  procfleet nats-auth revoke --user deployer --nats-auth nats-auth --nats nats://10.0.0.9:4222
  procfleet nats-auth revoke --creds stolen.creds --nats-auth nats-auth --nats nats://10.0.0.9:4222`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			authority, err := openAuthority(*dir)
			if err != nil {
				return err
			}
			return f.run(cmd, authority)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.users, "user", nil, "name or public key of a NATS user; repeatable")
	flags.StringSliceVar(&f.files, "creds", nil, "credentials file of a user; repeatable")
	flags.StringVar(&f.push.url, "nats", "", "URL of one NATS server of the cluster to notify")
	f.push.tls.Register(flags, "nats", "NATS")
	return cmd
}

func (f *natsRevokeFlags) run(cmd *cobra.Command, authority *natsauth.Authority) error {
	users, err := f.all(authority)
	if err != nil {
		return err
	}
	if err := authority.Revoke(users...); err != nil {
		return fmt.Errorf("--nats-auth: %w", err)
	}
	note := cmd.ErrOrStderr()
	fmt.Fprintf(note, "revoked %d NATS users: %s\n", len(users), users)
	made, err := authority.WriteUser(natsauth.Server, users...)
	if err != nil {
		return fmt.Errorf("--nats-auth: %w; call it again", err)
	}
	if made {
		fmt.Fprintf(note, "made a new user in %s: every dispatcher and worker needs this file\n", authority.UserPath(natsauth.Server))
	}
	if f.push.url != "" {
		return f.push.run(cmd.Context(), authority, note)
	}
	fmt.Fprintln(note, "brokers other than that of procfleet up do not know of it yet: procfleet nats-auth push --nats URL, or give --nats")
	return nil
}

// all are the public keys of who is named.
func (f *natsRevokeFlags) all(authority *natsauth.Authority) ([]string, error) {
	var users []string
	for _, name := range f.users {
		called, err := authority.UsersCalled(name)
		if err != nil {
			return nil, command.Usagef("--user: %w", err)
		}
		users = append(users, called...)
	}
	for _, file := range f.files {
		text, err := os.ReadFile(file) //nolint:gosec // a file that whoever starts the command names
		if err != nil {
			return nil, command.Usagef("--creds: %w", err)
		}
		user, err := authority.UserOf(text)
		if err != nil {
			return nil, command.Usagef("--creds %s: %w", file, err)
		}
		users = append(users, user)
	}
	if len(users) == 0 {
		return nil, command.Usagef("name who is to be revoked with --user, or give the credentials with --creds")
	}
	return users, nil
}
