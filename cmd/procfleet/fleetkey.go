package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsconn"
)

func fleetKeyFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "fleet-key", "", "fleet key file: signs messages to agents and verifies theirs")
}

// refuseUnsigned refuses a role without keys on servers that others can reach.
func (f *backendFlags) refuseUnsigned(s *settings.Settings, allow bool) {
	if f.fleetKey != "" {
		return
	}
	if err := natsconn.RefuseUnsigned(f.nats, "fleet-key", allow); err != nil {
		s.Wrong("fleet-key", "%s", err)
	}
}

func checkFleetKey(s *settings.Settings, file string) {
	if file == "" {
		return
	}
	if _, err := fleetkey.ReadRing(file); err != nil {
		s.Wrong("fleet-key", "%s", err)
	}
}

// ringSource returns the fleet's keys as they are now; nil is none.
type ringSource func() *fleetkey.Ring

// openFleetKey reads the keys in a file, and again when it changes until ctx
// ends. Without a file there are none.
func openFleetKey(ctx context.Context, file string, log logrus.FieldLogger) (ringSource, error) {
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

// Names in the data folder of `up`.
const (
	fleetKeyName = "fleet.key"
	natsAuthName = "nats-auth"
)

// fleetKeyIn is the file of the keys of a data folder, made if it is missing.
func fleetKeyIn(folder string) (file string, err error) {
	file = filepath.Join(folder, fleetKeyName)
	if err := fleetkey.Create(file); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return file, nil
}
