package main

import (
	"errors"
	"os"
	"path/filepath"

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
