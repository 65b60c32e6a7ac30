package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/datafile"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

type fleetFlags struct{ fleetKey, natsAuth, data string }

func (f *fleetFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.fleetKey, "fleet-key", "", "fleet key file")
	natsAuthFlag(flags, &f.natsAuth)
	flags.StringVar(&f.data, "data", "", "data directory of procfleet up, with fleet keys and NATS authority")
}

// complete replaces empty file names by the files in the data directory.
func (f *fleetFlags) complete() error {
	if f.data != "" {
		f.fleetKey = cmp.Or(f.fleetKey, filepath.Join(f.data, fleetKeyName))
		dir := filepath.Join(f.data, natsAuthName)
		if _, err := os.Stat(dir); err == nil {
			f.natsAuth = cmp.Or(f.natsAuth, dir)
		}
	}
	if f.fleetKey == "" {
		return command.Usagef("name the fleet key file with --fleet-key, or the data directory of procfleet up with --data")
	}
	return nil
}

// authority opens the NATS authority, or returns nil without --nats-auth.
func (f *fleetFlags) authority() (*natsauth.Authority, error) {
	if f.natsAuth == "" {
		return nil, nil //nolint:nilnil // NATS users are managed elsewhere
	}
	return openAuthority(f.natsAuth, natsauth.Open)
}

// enrollFlags are the flags of `enroll`.
type enrollFlags struct {
	hostFlags
	fleetFlags
	agentID         string
	out, brokerConf string
	valid           time.Duration
	create          bool
}

func newEnroll() *cobra.Command {
	var f enrollFlags
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Create the identities of hosts' agents",
		Long: `Create the identity file of each host for --identity of its agent, in place of --cloud and --ip. It contains the keys
to sign and verify messages and, with --nats-auth, a NATS user with the rights of this agent. The file is a secret of the
host.

With --agent-id callers can name the host by this id as well. Servers reject an agent id that is not in the identity of
the announcing host.

Repeat the command to replace a lost identity: it creates the same keys. Revoke a stolen one with procfleet revoke.`,
		Example: `  procfleet enroll --host 3:10.0.0.1 --fleet-key fleet.key --nats-auth nats-auth --out identity.yaml
  procfleet enroll --hosts-file hosts.txt --out identities/ --fleet-key fleet.key --nats-auth nats-auth
  procfleet enroll --host 0:10.0.0.2 --data procfleet-data --out identity.yaml
  procfleet enroll --host 0:10.0.0.2 --agent-id 02000000005254000b3dc9168005 --data procfleet-data --out identity.yaml
  procfleet enroll --create --data fleet --hosts-file hosts.txt --out identities/`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.hostFlags.register(flags)
	f.fleetFlags.register(flags)
	flags.StringVar(&f.agentID, "agent-id", "", "agent id for the identity of a single host")
	flags.StringVar(&f.out, "out", "", "output directory, or file for one host (default: standard output)")
	validFlag(flags, &f.valid)
	flags.BoolVar(&f.create, "create", false, "creation of missing fleet keys and NATS authority in --data")
	flags.StringVar(&f.brokerConf, "broker-conf", "", "output file for broker.conf of the NATS authority")
	return cmd
}

func (f *enrollFlags) run(cmd *cobra.Command) error {
	hosts, err := f.all(cmd)
	if err != nil {
		return err
	}
	if err := f.createKeys(); err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return err
	}
	if f.valid < 0 {
		return command.Usagef("--valid: %v is negative", f.valid)
	}
	if f.agentID != "" {
		if len(hosts) > 1 {
			return command.Usagef("--agent-id: an agent id belongs to one host, got %d hosts: enroll them one by one", len(hosts))
		}
		if err := fleetkey.ValidAgentID(f.agentID); err != nil {
			return command.Usagef("--agent-id: %s", err)
		}
	}
	if len(hosts) > 1 && f.out == "" {
		return command.Usagef("--out: name a directory for the identities of %d hosts", len(hosts))
	}
	ring, err := fleetkey.ReadRing(f.fleetKey)
	if err != nil {
		return fmt.Errorf("--fleet-key: %w", err)
	}
	authority, err := f.authority()
	if err != nil {
		return err
	}
	if authority == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "without --nats-auth the identities have no NATS user")
	}
	if err := f.copyBrokerConf(authority); err != nil {
		return fmt.Errorf("--broker-conf: %w", err)
	}
	for _, host := range hosts {
		text, err := identity(host, f.agentID, ring, authority, f.valid)
		if err == nil {
			err = f.write(cmd, host, text, len(hosts))
		}
		if err != nil {
			return fmt.Errorf("enroll %s: %w", host, err)
		}
	}
	if f.out != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "enrolled %d hosts in %s\n", len(hosts), f.out)
	}
	return nil
}

// createKeys creates the fleet keys and the authority in --data if they are missing.
func (f *enrollFlags) createKeys() error {
	switch {
	case !f.create:
		return nil
	case f.data == "":
		return command.Usagef("--create: name the directory of the keys with --data")
	}
	if err := os.MkdirAll(f.data, 0o700); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	if _, err := fleetKeyIn(f.data); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	_, err := createAuthority(filepath.Join(f.data, natsAuthName), natsauth.OpenOrCreate)
	return err
}

func (f *enrollFlags) copyBrokerConf(authority *natsauth.Authority) error {
	switch {
	case f.brokerConf == "":
		return nil
	case authority == nil:
		return command.Usagef("name the authority with --nats-auth")
	}
	text, err := os.ReadFile(authority.BrokerPath())
	if err != nil {
		return err
	}
	return datafile.Update(f.brokerConf, int64(len(text))+1<<20, func([]byte) ([]byte, error) { return text, nil })
}

// identity creates the content of a host's identity file.
func identity(host procfleet.Host, agentID string, ring *fleetkey.Ring, authority *natsauth.Authority, valid time.Duration) ([]byte, error) {
	i := fleetkey.Identity{Host: ring.Enroll(host.String(), agentID)}
	if authority != nil {
		var err error
		if i.NATS, err = authority.Enroll(hostUser(host, ring.Generation(host.String())), valid); err != nil {
			return nil, err
		}
	}
	return i.Text()
}

func hostUser(host procfleet.Host, generation int) *natsauth.HostUser {
	return &natsauth.HostUser{Cloud: int64(host.Cloud), Addr: host.Addr, Generation: generation}
}

// write writes the identity of one of the hosts to --out, which is a file or a directory, or
// to standard output.
func (f *enrollFlags) write(cmd *cobra.Command, host procfleet.Host, text []byte, hosts int) error {
	if f.out == "" {
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	info, err := os.Stat(f.out)
	if hosts == 1 && !strings.HasSuffix(f.out, "/") && (err != nil || !info.IsDir()) {
		return writeWhole(f.out, text, 0o600)
	}
	if err := os.MkdirAll(f.out, 0o700); err != nil {
		return err
	}
	name := strconv.FormatInt(int64(host.Cloud), 10) + "-" + strings.ReplaceAll(host.Addr.String(), ":", "-") + ".yaml" // Windows allows no colons in names
	return writeWhole(filepath.Join(f.out, name), text, 0o600)
}

// writeWhole replaces a file atomically. It does not sync: a file that a power loss
// destroys can be created again.
func writeWhole(path string, text []byte, mode os.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Chmod(mode), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// revokeFlags are the flags of `revoke`.
type revokeFlags struct {
	hostFlags
	fleetFlags
	push natsPush
}

func newRevoke() *cobra.Command {
	var f revokeFlags
	cmd := &cobra.Command{
		Use:   "revoke",
		Short: "Revoke host identities",
		Long: `Revoke the identities of hosts, for example after a theft. Dispatchers and workers reject their messages within a second
after the --fleet-key file changes. Brokers reached with --nats disconnect them at once, as does procfleet up with this
data directory. Notify other brokers with procfleet nats-auth push, or restart them with the new broker.conf. Enroll the
hosts again with procfleet enroll.`,
		Example: `  procfleet revoke --host 3:10.0.0.1 --fleet-key fleet.key --nats-auth nats-auth --nats nats://10.0.0.9:4222
  procfleet revoke --host 0:10.0.0.2 --data procfleet-data`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.hostFlags.register(flags)
	f.fleetFlags.register(flags)
	f.push.register(flags)
	return cmd
}

func (f *revokeFlags) run(cmd *cobra.Command) error {
	hosts, err := f.all(cmd)
	if err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return err
	}
	authority, err := f.authority()
	if err != nil {
		return err
	}
	generations := make([]int, len(hosts))
	err = fleetkey.Update(f.fleetKey, func(file *fleetkey.File) error {
		for i, host := range hosts {
			generations[i] = file.Revoke(host.String())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("--fleet-key: %w", err)
	}
	note := cmd.ErrOrStderr()
	fmt.Fprintf(note, "revoked the keys of %d hosts in %s: copy this file to every dispatcher and worker\n", len(hosts), f.fleetKey)
	if authority == nil {
		return nil
	}
	if err := revokeUsers(authority, hosts, generations); err != nil {
		return fmt.Errorf("--nats-auth: %w; run the command again", err)
	}
	switch {
	case f.push.url != "":
		return f.push.run(cmd.Context(), authority, note)
	case f.data == "":
		fmt.Fprintln(note, "NATS is not notified yet: run procfleet nats-auth push --nats URL, or give --nats")
	}
	return nil
}

// revokeUsers revokes the NATS users of the hosts in all generations.
func revokeUsers(authority *natsauth.Authority, hosts []procfleet.Host, generations []int) error {
	var users []string
	for i, host := range hosts {
		for generation := range generations[i] {
			user, err := authority.Public(hostUser(host, generation))
			if err != nil {
				return err
			}
			users = append(users, user)
		}
	}
	return authority.Revoke(users...)
}
