package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/natsauth"
)

func natsCredsFlag(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "nats-creds", "", "file of the NATS user as whom to connect, which procfleet nats-auth makes; read again at every attempt to connect")
}

func checkNATSCreds(s *settings.Settings, file string) {
	if file == "" {
		return
	}
	text, err := natsauth.ReadCredentials(file)
	if err != nil {
		s.Wrong("nats-creds", "%s", err)
		return
	}
	switch _, until, err := natsauth.ParseCredentials(text); {
	case err != nil:
		s.Wrong("nats-creds", "%s: %s", file, err)
	case !until.IsZero() && time.Now().After(until):
		s.Wrong("nats-creds", "%s was good until %s: make another with procfleet nats-auth user", file, until.UTC().Format(time.RFC3339))
	}
}

// natsCredentials reads a credentials file whenever they are asked for; nil
// without a file.
func natsCredentials(file string) func() ([]byte, error) {
	if file == "" {
		return nil
	}
	return func() ([]byte, error) { return natsauth.ReadCredentials(file) }
}
