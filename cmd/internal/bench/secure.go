package bench

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
)

// Secure is the value of --secure: the security features of the servers that --start
// starts. The zero Secure enables none.
type Secure struct {
	Keys        bool // messages are signed
	Credentials bool // NATS requires users, which have limited permissions
	TLS         bool // mutual TLS to NATS and Redis
}

var secureAll = Secure{Keys: true, Credentials: true, TLS: true}

// feature is a security feature with its name in --secure.
type feature struct {
	name    string
	enabled *bool
}

func (s *Secure) features() []feature {
	return []feature{{"keys", &s.Keys}, {"credentials", &s.Credentials}, {"tls", &s.TLS}}
}

// Set parses comma-separated names of features.
func (s *Secure) Set(text string) error {
	*s = Secure{}
	for name := range strings.SplitSeq(text, ",") {
		name, known := strings.TrimSpace(name), false
		for _, f := range s.features() {
			if name == "all" || name == f.name {
				*f.enabled, known = true, true
			}
		}
		if !known && name != "none" && name != "" {
			return fmt.Errorf("%q is not keys, credentials, tls, all or none", name)
		}
	}
	return nil
}

// String returns the enabled features in the format of [Secure.Set].
func (s *Secure) String() string {
	var names []string
	for _, f := range s.features() {
		if *f.enabled {
			names = append(names, f.name)
		}
	}
	switch {
	case len(names) == 0:
		return "none"
	case *s == secureAll:
		return "all"
	}
	return strings.Join(names, ",")
}

// Type returns the type of the flag value in help texts.
func (s *Secure) Type() string { return "words" }

// secure creates the files of the enabled features in the directory of the lab.
func (l *lab) secure() error {
	if l.Secure.Keys {
		l.FleetKey = filepath.Join(l.plant.dir, "fleet.key")
		if err := fleetkey.Create(l.FleetKey); err != nil {
			return err
		}
	}
	if l.Secure.Credentials {
		l.natsAuth = filepath.Join(l.plant.dir, "nats-auth")
		authority, err := natsauth.Create(l.natsAuth)
		if err != nil {
			return err
		}
		if _, err := authority.WriteUser(natsauth.Server); err != nil {
			return err
		}
		l.NATSCreds = authority.UserPath(natsauth.Server)
	}
	if l.Secure.TLS {
		files, err := makeCertificates(l.plant.dir)
		if err != nil {
			return err
		}
		l.NATSTLS.Files, l.RedisTLS.Files = files, files
	}
	return nil
}

// safety returns the enabled features for table titles: signed messages, and the features
// that the servers require of this program.
func (l *lab) safety() string {
	var on []string
	if l.FleetKey != "" {
		on = append(on, "signed messages")
	}
	if l.conn.AuthRequired() {
		on = append(on, "NATS credentials")
	}
	if _, err := l.conn.TLSConnectionState(); err == nil {
		on = append(on, "TLS to NATS")
	}
	if l.redis != nil && l.redis.Options().TLSConfig != nil {
		on = append(on, "TLS to Redis")
	}
	if len(on) == 0 {
		return "without signatures, credentials and TLS"
	}
	return "with " + strings.Join(on, ", ")
}

// natsFlags returns the flags of NATS clients. Unused flags are included with empty values,
// so that neither the environment nor a settings file enables a feature.
func (l *lab) natsFlags() []string {
	return []string{
		"--nats", l.NATS, "--nats-ca", l.NATSTLS.CA, "--nats-cert", l.NATSTLS.Cert, "--nats-key", l.NATSTLS.Key,
		"--nats-creds", l.NATSCreds, "--fleet-key", l.FleetKey, "--log-level", "warn",
	}
}

func (l *lab) redisFlags() []string {
	return []string{"--redis", l.Redis, "--redis-ca", l.RedisTLS.CA, "--redis-cert", l.RedisTLS.Cert, "--redis-key", l.RedisTLS.Key}
}

// checkSecure returns an error if security settings contradict each other.
func (c *Config) checkSecure() error {
	named := !c.NATSTLS.None() || !c.RedisTLS.None() || c.NATSCreds != "" || c.FleetKey != ""
	switch {
	case c.Start && named:
		return errors.New("--start creates certificates, credentials and keys according to --secure: " +
			"omit --nats-…, --redis-… and --fleet-key, also as environment variables, or name running servers with --nats and --redis instead")
	case !c.Start && c.Secure != Secure{}:
		return errors.New("--secure requires --start; for running servers give --nats-creds, --nats-ca, --redis-ca and --fleet-key")
	}
	return nil
}
