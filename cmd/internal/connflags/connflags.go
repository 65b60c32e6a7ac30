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
	flags.StringVar(url, "nats", "nats://127.0.0.1:4222", "NATS server URLs, comma-separated")
	files.Register(flags, "nats", "NATS")
}

// Redis registers --redis and the flags of its certificates.
func Redis(flags *pflag.FlagSet, url *string, files *tlsflags.Client) {
	files.Register(flags, "redis", "Redis")
	flags.StringVar(url, "redis", "redis://127.0.0.1:6379/0", "Redis URL: redis://[user:password@]host:port/db, or rediss:// for TLS")
}

// NATSCreds registers --nats-creds.
func NATSCreds(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "nats-creds", "", "credentials file of the NATS user, from procfleet nats-auth")
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
