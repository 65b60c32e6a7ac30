package main

import (
	"time"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/natsauth"
)

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
