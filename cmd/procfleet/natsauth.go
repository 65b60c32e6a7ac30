package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/natsauth"
)

func newNATSAuth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nats-auth",
		Short: "Manage the authority for NATS users",
		Long: `Manage the authority for NATS users with least privilege: a directory of keys, of which brokers have only the public
part. Create and revoke users of hosts with procfleet enroll and procfleet revoke, all other users here.`,
		Example: `  procfleet nats-auth init --nats-auth nats-auth
  procfleet nats-auth user leaf --cloud 3 --nats-auth nats-auth > area-3.creds
  procfleet nats-auth revoke --user deployer --nats-auth nats-auth --nats nats://10.0.0.9:4222
  procfleet nats-auth push --nats nats://10.0.0.9:4222 --nats-auth nats-auth`,
	}
	var dir string
	natsAuthFlag(cmd.PersistentFlags(), &dir)
	cmd.AddCommand(newNATSAuthInit(&dir), newNATSAuthUser(&dir), newNATSAuthRevoke(&dir), newNATSAuthPush(&dir))
	return cmd
}

func natsAuthFlag(flags *pflag.FlagSet, dir *string) {
	flags.StringVar(dir, "nats-auth", "", "directory of the NATS authority; secret, not for brokers")
}

// openAuthority opens, or creates, the authority in the directory of --nats-auth.
func openAuthority(dir string, open func(string) (*natsauth.Authority, error)) (*natsauth.Authority, error) {
	if dir == "" {
		return nil, command.Usagef("name the directory with --nats-auth or PROCFLEET_NATS_AUTH, for example --nats-auth nats-auth")
	}
	authority, err := open(dir)
	if err != nil {
		return nil, fmt.Errorf("--nats-auth: %w", err)
	}
	return authority, nil
}

func newNATSAuthInit(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Create an authority and the files for brokers and servers",
		Long: `Create an authority in a directory, once for a fleet. Beside its keys the directory contains
  broker.conf    for nats-server to include; it changes with every revocation
  server.creds   for --nats-creds of dispatchers, workers and simulate
  monitor.creds  for monitoring`,
		Example: "  procfleet nats-auth init --nats-auth nats-auth",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := createAuthority(*dir, natsauth.Create); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "created an authority in %s: back up authority.yaml and never copy it to brokers\n", *dir)
			return nil
		},
	}
}

// createAuthority creates an authority, and credentials for servers and monitoring.
func createAuthority(dir string, create func(string) (*natsauth.Authority, error)) (*natsauth.Authority, error) {
	return openAuthority(dir, func(dir string) (*natsauth.Authority, error) {
		authority, err := create(dir)
		for _, role := range []natsauth.Role{natsauth.Server, natsauth.Monitor} {
			if err == nil {
				_, err = authority.WriteUser(role)
			}
		}
		return authority, err
	})
}

func newNATSAuthUser(dir *string) *cobra.Command {
	var cloud int64
	var name string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "user ROLE",
		Short: "Create a NATS user for a server or program",
		Long: `Write the credentials of a new NATS user to standard output and its inbox prefix to standard error. Programs must connect
with this prefix, because the user receives replies nowhere else. ROLE is
  server    for dispatchers, workers and simulated agents
  producer  publishes operations to procfleet.submit and receives events of finished tasks
  leaf      the NATS server of the cloud area --cloud
  monitor   queries the state of brokers, nothing of the fleet`,
		Example: `  procfleet nats-auth user leaf --cloud 3 --nats-auth nats-auth > area-3.creds
  procfleet nats-auth user producer --name deployer --valid 2160h --nats-auth nats-auth > deployer.creds`,
		Args: exactly("ROLE: server, producer, leaf or monitor"),
		RunE: func(cmd *cobra.Command, args []string) error {
			authority, err := openAuthority(*dir, natsauth.Open)
			if err != nil {
				return err
			}
			role := natsauth.Role(args[0])
			switch role {
			case natsauth.Server, natsauth.Producer, natsauth.Leaf, natsauth.Monitor:
			default:
				return command.Usagef("unknown role %q: use server, producer, leaf or monitor; procfleet enroll creates the users of agents", args[0])
			}
			if cloud < 0 || valid < 0 {
				return command.Usagef("--cloud and --valid must not be negative")
			}
			credentials, err := authority.KeepUser(role, cmp.Or(name, args[0]), cloud, valid)
			if err != nil {
				return err
			}
			user, _, err := natsauth.ParseCredentials([]byte(credentials))
			if err != nil {
				return err
			}
			if role != natsauth.Leaf {
				fmt.Fprintf(cmd.ErrOrStderr(), "the inbox prefix of this user is %s\n", natsauth.InboxPrefix(role, user))
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), credentials)
			return err
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&cloud, "cloud", 0, "cloud area of a leaf")
	flags.StringVar(&name, "name", "", "user name for brokers and revocation (default: the role)")
	validFlag(flags, &valid)
	return cmd
}

func validFlag(flags *pflag.FlagSet, valid *time.Duration) {
	flags.DurationVar(valid, "valid", 0, "lifetime of the NATS user; 0 for unlimited")
}
