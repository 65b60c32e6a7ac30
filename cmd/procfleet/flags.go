package main

import (
	"fmt"
	"io"
	"net/netip"
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
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/plaintext"
	"github.com/procfleet/procfleet/taskstore/redisstore"
	"github.com/procfleet/procfleet/worker"
)

func isTerminal(out io.Writer) bool {
	file, ok := plaintext.Under(out).(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// backendFlags say what dispatchers and workers stand on.
type backendFlags struct {
	nats, redis    string
	fleetKey       string
	natsCreds      string
	natsTLS        tlsflags.Client
	redisPassword  string
	redisTLS       tlsflags.Client
	embedded       bool // an empty URL is a part in this process
	streamReplicas int
	waitReplicas   int
	waitTimeout    time.Duration
}

// registerRest adds the flags beside the URLs, which not every command
// describes in the same words.
func (f *backendFlags) registerRest(flags *pflag.FlagSet) {
	fleetKeyFlag(flags, &f.fleetKey)
	connflags.NATSCreds(flags, &f.natsCreds)
	flags.IntVar(&f.streamReplicas, "stream-replicas", 0, "servers of a NATS cluster that keep each stream, 1 to 5; 0 leaves streams as they are and makes new ones with as many as the others have, at first 1")
	flags.StringVar(&f.redisPassword, "redis-password-file", "", "file whose first line is the password of the user in --redis, which then has none; read again at every connection")
	flags.IntVar(&f.waitReplicas, "redis-wait-replicas", 0, "Redis replicas that must have a new task or a result before it is confirmed; 0 waits for none")
	flags.DurationVar(&f.waitTimeout, "redis-wait-timeout", time.Second, "longest wait for --redis-wait-replicas; then the call counts as failed")
}

func (f *backendFlags) check(s *settings.Settings) {
	if f.nats != "" || !f.embedded {
		s.Refused(natsconn.Config{URL: f.nats}.Validate(), map[string]string{"URL": "nats"})
	}
	checkFleetKey(s, f.fleetKey)
	checkNATSCreds(s, f.natsCreds)
	f.natsTLS.Check(s)
	f.redisTLS.Check(s)
	if !f.redisTLS.None() && !strings.HasPrefix(f.redis, "rediss://") {
		s.Wrong("redis", "is without TLS, and --redis-ca or --redis-cert is given: write rediss:// in place of redis://")
	}
	checkRedisPassword(s, f.redisPassword)
	if f.redis != "" || !f.embedded {
		s.Refused(f.redisOptions(nil).Validate(), map[string]string{
			"URL": "redis", "WaitReplicas": "redis-wait-replicas", "WaitTimeout": "redis-wait-timeout",
		})
	}
	if f.streamReplicas < 0 || f.streamReplicas > 5 {
		s.Wrong("stream-replicas", "%d is not a number of replicas from 1 to 5, nor 0", f.streamReplicas)
	}
	s.AtLeast(1, "redis-wait-timeout")
}

func (f *backendFlags) streams() bus.Options { return bus.Options{Replicas: f.streamReplicas} }

// natsConfig says how a role connects to NATS.
func (f *backendFlags) natsConfig(name string, p *daemon.Process) (natsconn.Config, error) {
	files, err := f.natsTLS.Open(p.Log)
	return natsconn.Config{
		URL: f.nats, TLS: files, Credentials: connflags.Credentials(f.natsCreds), InboxPrefix: natsauth.ServerInbox,
		Name: name, OnLost: p.Fail, Log: p.Log,
	}, err
}

func (f *backendFlags) redisOptions(log logrus.FieldLogger) redisstore.Options {
	return redisstore.Options{
		URL: f.redis, Password: redisPassword(f.redisPassword), WaitReplicas: f.waitReplicas, WaitTimeout: f.waitTimeout, Log: log,
	}
}

// doorFlags are those of a dispatcher's HTTP listener and of what one request
// may cost.
type doorFlags struct {
	listen               string
	listenTLS            tlsflags.Server
	allowUnauthenticated bool
	allowLocalUsers      bool
	apps, login, trusted string
	loginTLS             tlsflags.Client
	maxBody              int64
	maxItems             int
	connections          int
	slack, retention     time.Duration
}

func (f *doorFlags) register(flags *pflag.FlagSet) {
	d := dispatcher.Config{}.WithDefaults()
	flags.StringVar(&f.listen, "http", d.Listen, "address to listen on for HTTP, or unix:PATH for a Unix socket of this account")
	f.listenTLS.Register(flags, "http")
	flags.IntVar(&f.connections, "http-connections", 20_000, "connections to --http at a time; further ones are closed at once")
	flags.BoolVar(&f.allowUnauthenticated, "allow-unauthenticated", false,
		"listen off loopback although callers are not authenticated; for test networks only")
	flags.BoolVar(&f.allowLocalUsers, "allow-local-users", false,
		"let every account of this machine call on loopback without --apps; without it only this account and root")
	flags.StringVar(&f.apps, "apps", "", "file of the applications that may call, which procfleet app keeps; nobody else can then, and --http need not be on loopback")
	flags.StringVar(&f.login, "login-url", "", "URL of BlueKing's login server, which knows whose a bk_token is; without it none counts")
	f.loginTLS.Register(flags, "login-url", "the login server")
	flags.StringVar(&f.trusted, "trusted-esb", "", "CIDRs of trusted ESB gateways, whose Bk-App-Code header names the application")
	flags.Int64Var(&f.maxBody, "max-body", d.Limits.Body, "largest body of a request, in bytes")
	flags.IntVar(&f.maxItems, "max-items", d.Limits.Items, "most processes times hosts of one request")
	flags.DurationVar(&f.slack, "slack", d.Slack, "time that a task has beyond what its operations themselves may take")
	flags.DurationVar(&f.retention, "retention", d.Retention, "how long a task is kept after its deadline")
}

// config returns what the flags say of a dispatcher.
func (f *doorFlags) config() dispatcher.Config {
	trusted, _ := prefixes(f.trusted) // check says what is wrong with them
	return dispatcher.Config{
		Listen: f.listen, AllowUnauthenticated: f.allowUnauthenticated, AllowLocalUsers: f.allowLocalUsers,
		AppsFile: f.apps, LoginURL: f.login, TrustedESB: trusted,
		Limits: dispatcher.Limits{Body: f.maxBody, Items: f.maxItems},
		Slack:  f.slack, Retention: f.retention,
		Version: version,
	}
}

func (f *doorFlags) check(s *settings.Settings) {
	s.AtLeast(1, "http-connections", "max-body", "max-items", "slack", "retention")
	if path, is := f.socketPath(); is {
		if err := daemon.CheckSocket(path); err != nil {
			s.Wrong("http", "%s", err)
		}
	} else if err := daemon.CheckAddress(f.listen); err != nil {
		s.Wrong("http", "%s", err)
	}
	f.listenTLS.Check(s)
	f.loginTLS.CheckHTTPS(s, f.login)
	if _, err := prefixes(f.trusted); err != nil {
		s.Wrong("trusted-esb", "%s", err)
	}
	if f.apps != "" {
		if _, err := apps.Read(f.apps); err != nil {
			s.Wrong("apps", "%s", err)
		}
	}
	s.Refused(f.config().WithDefaults().Validate(), map[string]string{
		"Listen": "http", "LoginURL": "login-url", "TrustedESB": "trusted-esb", "Limits.Body": "max-body", "Limits.Items": "max-items", "Slack": "slack", "Retention": "retention",
	})
}

// prefixes reads networks, separated by commas; an address is a network of one.
func prefixes(texts string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	for text := range strings.SplitSeq(texts, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
			addr = addr.Unmap()
			found = append(found, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no address and no network like 10.0.0.0/24", text)
		}
		if prefix.Bits() == 0 {
			return nil, fmt.Errorf("%q is everybody: whoever calls could call for any application; name the addresses of the ESBs", text)
		}
		found = append(found, prefix.Masked())
	}
	return found, nil
}

// loadFlags bound what a worker holds at a time.
type loadFlags struct{ smallChunks, bigChunks, items int }

func (f *loadFlags) register(flags *pflag.FlagSet) {
	d := worker.Config{}.WithDefaults().Limits
	flags.IntVar(&f.smallChunks, "small-chunks", d.SmallChunks, "chunks of tasks of at most 256 items that a worker delivers at a time")
	flags.IntVar(&f.bigChunks, "big-chunks", d.BigChunks, "chunks of bigger tasks that a worker delivers at a time")
	flags.IntVar(&f.items, "max-items-in-hand", d.Items, "items that a worker delivers at a time, of small tasks and of big ones each")
}

func (f *loadFlags) limits() worker.Limits {
	return worker.Limits{SmallChunks: f.smallChunks, BigChunks: f.bigChunks, Items: f.items}
}

func (f *loadFlags) check(s *settings.Settings) {
	s.AtLeast(1, "small-chunks", "big-chunks", "max-items-in-hand")
}

func drainFlag(flags *pflag.FlagSet, drain *time.Duration, byDefault time.Duration, what string) {
	flags.DurationVar(drain, "drain", byDefault, "how long "+what+" may go on when the process is told to stop")
}
