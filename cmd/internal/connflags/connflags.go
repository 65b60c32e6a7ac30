// Package connflags defines the flags of connections to NATS and Redis for all
// commands.
package connflags

import (
	"context"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// NATS registers --nats and its certificate flags.
func NATS(flags *pflag.FlagSet, url *string, files *tlsflags.Client) {
	flags.StringVar(url, "nats", "nats://127.0.0.1:4222", "NATS server URLs, comma-separated")
	files.Register(flags, "nats", "NATS")
}

// Redis registers --redis and its certificate flags.
func Redis(flags *pflag.FlagSet, url *string, files *tlsflags.Client) {
	files.Register(flags, "redis", "Redis")
	flags.StringVar(url, "redis", "redis://127.0.0.1:6379/0", "Redis URL: redis://[user:password@]host:port/db, or rediss:// for TLS")
}

// NATSCreds registers --nats-creds.
func NATSCreds(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "nats-creds", "", "credentials file of the NATS user, from procfleet nats-auth")
}

// Credentials returns a function that reads the credentials file, or nil if file is
// empty.
func Credentials(file string) func() ([]byte, error) {
	if file == "" {
		return nil
	}
	return func() ([]byte, error) { return natsauth.ReadCredentials(file) }
}

// OpenFleetKey reads the fleet's keys from a file, and reloads them after every change
// until ctx ends. The returned function returns the current keys, or nil if file is
// empty.
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
