// Package connflags has the flags with which a process reaches NATS and Redis,
// the same for every command.
package connflags

import (
	"context"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// NATS registers --nats and the flags of its certificates.
func NATS(flags *pflag.FlagSet, url *string, files *tlsflags.Client) {
	flags.StringVar(url, "nats", "nats://127.0.0.1:4222", "URL of NATS; several, separated by commas, of a cluster")
	files.Register(flags, "nats", "NATS")
}

// Redis registers --redis and the flags of its certificates.
func Redis(flags *pflag.FlagSet, url *string, files *tlsflags.Client) {
	files.Register(flags, "redis", "Redis")
	flags.StringVar(url, "redis", "redis://127.0.0.1:6379/0", "URL of Redis: redis://[user:password@]host:port/db, rediss:// for TLS; "+
		"Sentinel redis://host:26379/0?master_name=NAME&addr=host2:26379; Cluster redis://host:6379?cluster=true&addr=host2:6379")
}

// NATSCreds registers --nats-creds.
func NATSCreds(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "nats-creds", "", "file of the NATS user as whom to connect, which procfleet nats-auth makes; read again at every attempt to connect")
}

// Credentials returns a function that reads a credentials file; nil without a
// file.
func Credentials(file string) func() ([]byte, error) {
	if file == "" {
		return nil
	}
	return func() ([]byte, error) { return natsauth.ReadCredentials(file) }
}

// OpenFleetKey reads the fleet's keys from a file, and again when the file
// changes until ctx ends. It returns the keys as they are now; without a file
// they are nil.
func OpenFleetKey(ctx context.Context, file string, log logrus.FieldLogger) (func() *fleetkey.Ring, error) {
	if file == "" {
		return func() *fleetkey.Ring { return nil }, nil
	}
	ring, err := fleetkey.OpenRing(file)
	if err != nil {
		return nil, err
	}
	go ring.Watch(ctx, log)
	return ring.Current, nil
}
