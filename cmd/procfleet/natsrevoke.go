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
		Short: "Revoke NATS users other than agents'",
		Long: `Revoke NATS users, for example after a theft of their credentials: by the name under which procfleet nats-auth user
created them, or by their credentials files. Brokers reached with --nats disconnect them at once, as does procfleet up
with this authority.

If the user of server.creds in the authority's directory is revoked, the command creates a new one, which dispatchers
and workers read without a restart. To replace it without an interruption, first give them the credentials of
nats-auth user server --name servers-2, then revoke the user named server.`,
		Example: `  procfleet nats-auth revoke --user deployer --nats-auth nats-auth --nats nats://10.0.0.9:4222
  procfleet nats-auth revoke --creds stolen.creds --nats-auth nats-auth --nats nats://10.0.0.9:4222`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			authority, err := openAuthority(*dir, natsauth.Open)
			if err != nil {
				return err
			}
			return f.run(cmd, authority)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.users, "user", nil, "name or public key of a NATS user; repeatable")
	flags.StringSliceVar(&f.files, "creds", nil, "credentials file of a user; repeatable")
	f.push.register(flags)
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
		return fmt.Errorf("--nats-auth: %w; run the command again", err)
	}
	if made {
		fmt.Fprintf(note, "created a new user in %s: copy this file to every dispatcher and worker\n", authority.UserPath(natsauth.Server))
	}
	if f.push.url != "" {
		return f.push.run(cmd.Context(), authority, note)
	}
	fmt.Fprintln(note, "external brokers are not notified yet: run procfleet nats-auth push --nats URL, or give --nats")
	return nil
}

// all returns the public keys of the selected users.
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
		text, err := os.ReadFile(file) //nolint:gosec // a file that the user names
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
		return nil, command.Usagef("name the users with --user, or their credentials files with --creds")
	}
	return users, nil
}
