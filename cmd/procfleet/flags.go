package main

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/procfleet/procfleet/cmd/internal/connflags"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/plaintext"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/worker"
)

func isTerminal(out io.Writer) bool {
	file, ok := plaintext.Under(out).(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// backendFlags are the flags for NATS, Redis and the fleet keys.
type backendFlags struct {
	nats, redis    string
	fleetKey       string
	natsCreds      string
	natsTLS        tlsflags.Client
	redisPassword  string
	redisTLS       tlsflags.Client
	embedded       bool // an empty URL selects the embedded NATS or store
	streamReplicas int
	waitReplicas   int
	waitTimeout    time.Duration
}

// register adds all flags except --nats and --redis.
func (f *backendFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.fleetKey, "fleet-key", "", "fleet key file for signing and verifying agent messages")
	connflags.NATSCreds(flags, &f.natsCreds)
	flags.IntVar(&f.streamReplicas, "stream-replicas", 0, "replicas of each stream, 1 to 5; 0 for no change")
	flags.StringVar(&f.redisPassword, "redis-password-file", "", "file with the password of the --redis user, read per connection")
	flags.IntVar(&f.waitReplicas, "redis-wait-replicas", 0, "Redis replicas that acknowledge each write of a task or result")
	flags.DurationVar(&f.waitTimeout, "redis-wait-timeout", time.Second, "timeout of --redis-wait-replicas, after which the call fails")
}

func (f *backendFlags) check(s *settings.Settings) {
	if f.nats != "" || !f.embedded {
		s.Refused(natsconn.Config{URL: f.nats}.Validate(), map[string]string{"URL": "nats"})
	}
	if f.fleetKey != "" {
		_, err := fleetkey.ReadRing(f.fleetKey)
		s.Check("fleet-key", err)
	}
	checkNATSCreds(s, f.natsCreds)
	f.natsTLS.Check(s)
	f.redisTLS.Check(s)
	if !f.redisTLS.None() && !strings.HasPrefix(f.redis, "rediss://") {
		s.Wrong("redis", "has no TLS, which --redis-ca and --redis-cert require: write rediss:// instead of redis://")
	}
	if f.redisPassword != "" {
		_, err := readPassword(f.redisPassword)
		s.Check("redis-password-file", err)
	}
	if f.redis != "" || !f.embedded {
		s.Refused(f.redisOptions(nil).Validate(), map[string]string{
			"URL": "redis", "WaitReplicas": "redis-wait-replicas", "WaitTimeout": "redis-wait-timeout",
		})
	}
	if f.streamReplicas < 0 || f.streamReplicas > 5 {
		s.Wrong("stream-replicas", "%d is not from 0 to 5", f.streamReplicas)
	}
	s.AtLeast(1, "redis-wait-timeout")
}

func (f *backendFlags) streams() bus.Options { return bus.Options{Replicas: f.streamReplicas} }

// natsConfig returns the configuration of a role's NATS connection.
func (f *backendFlags) natsConfig(name string, p *daemon.Process) (natsconn.Config, error) {
	files, err := f.natsTLS.Open(p.Log)
	return natsconn.Config{
		URL: f.nats, TLS: files, Credentials: connflags.Credentials(f.natsCreds), InboxPrefix: natsauth.ServerInbox,
		Name: name, OnLost: p.Fail, Log: p.Log,
	}, err
}

func (f *backendFlags) redisOptions(log logrus.FieldLogger) redisconn.Options {
	return redisconn.Options{
		URL: f.redis, Password: redisPassword(f.redisPassword), WaitReplicas: f.waitReplicas, WaitTimeout: f.waitTimeout, Log: log,
	}
}

// loadFlags limit the concurrent deliveries of a worker.
type loadFlags struct{ smallChunks, bigChunks, items int }

func (f *loadFlags) register(flags *pflag.FlagSet) {
	d := worker.Config{}.WithDefaults().Limits
	flags.IntVar(&f.smallChunks, "small-chunks", d.SmallChunks, "concurrent chunks per worker of small tasks (at most 256 items)")
	flags.IntVar(&f.bigChunks, "big-chunks", d.BigChunks, "concurrent chunks per worker of big tasks (more than 256 items)")
	flags.IntVar(&f.items, "max-items-in-hand", d.Items, "in-flight items of small tasks, and as many of big tasks")
}

func (f *loadFlags) limits() worker.Limits {
	return worker.Limits{SmallChunks: f.smallChunks, BigChunks: f.bigChunks, Items: f.items}
}

func (f *loadFlags) check(s *settings.Settings) {
	s.AtLeast(1, "small-chunks", "big-chunks", "max-items-in-hand")
}
