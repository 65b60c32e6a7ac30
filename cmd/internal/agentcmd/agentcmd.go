// Package agentcmd implements the command that runs an agent, for procfleet and
// procfleet-agent.
package agentcmd

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/agent"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/natsconn"
)

type agentFlags struct {
	daemon.Flags
	nats          string
	natsTLS       tlsflags.Client
	cloud         int64
	ip            string
	agentID       string
	identity      string
	allowUnsigned bool // accept a non-loopback NATS without an identity
	labels        Labels
	data          string
	drain         time.Duration
}

// New returns the command.
func New() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Operate and supervise the processes of this host",
		Long: `Receive commands for this host over NATS, run them, verify processes and keep supervised processes alive.

SIGTERM stops the agent gracefully; its supervised processes keep running, and the next agent adopts them.
A second signal ends it at once.`,
		Example: `  procfleet-agent --nats nats://10.0.0.9:4222 --identity /etc/procfleet/identity.yaml
  procfleet-agent --nats nats://127.0.0.1:4222 --cloud 0 --ip 10.0.0.1 --data /var/lib/procfleet-agent`,
		Args:        command.NoArgs,
		Annotations: command.Common("agent-id cloud data identity ip log-level nats status-http"),
	}
	set := cmd.Flags()
	set.StringVar(&f.nats, "nats", "nats://127.0.0.1:4222", "NATS server URLs, comma-separated")
	f.natsTLS.Register(set, "nats", "NATS")
	set.Int64Var(&f.cloud, "cloud", 0, "cloud area of this host")
	set.StringVar(&f.ip, "ip", "", "host address in its cloud area (required without --identity)")
	f.labels.Register(set)
	set.StringVar(&f.identity, "identity", "", "identity file of this host, with keys, --cloud and --ip")
	set.BoolVar(&f.allowUnsigned, "allow-unauthenticated", false, "unsigned messages over a non-loopback NATS; test networks only")
	set.StringVar(&f.agentID, "agent-id", "", "alternative host name for callers (default: from --identity)")
	set.StringVar(&f.data, "data", defaultData, "directory of the agent's journal, exclusive to one agent")
	set.DurationVar(&f.drain, "drain", agent.Config{}.WithDefaults().DrainTimeout, "grace period for operations on shutdown")
	cmd.AddCommand(newPS(), newCheck())
	return daemon.Command(cmd, &f.Flags, daemon.Role{Version: command.Version(), Check: f.check, Run: f.run})
}

func (f *agentFlags) check(s *settings.Settings) {
	f.checkIdentity(s)
	switch _, err := netip.ParseAddr(f.ip); {
	case f.ip == "":
		s.Wrong("ip", "is required: the address of this host in its cloud area, for example 10.0.0.1; or give --identity")
	case err != nil:
		s.Wrong("ip", "%q is neither an IPv4 nor an IPv6 address, for example 10.0.0.1", f.ip)
	}
	f.labels.Check(s)
	s.AtLeast(1, "drain")
	s.Refused(natsconn.Config{URL: f.nats}.Validate(), map[string]string{"URL": "nats"})
	f.natsTLS.CheckButDates(s) // tolerates expired certificates: supervision works without NATS
	s.Refused(f.config().WithDefaults().Validate(), map[string]string{
		"Cloud": "cloud", "Addr": "ip", "DataDir": "data", "DrainTimeout": "drain",
	})
}

// checkIdentity sets cloud, address and agent id from the identity file, and reports
// contradicting flags.
func (f *agentFlags) checkIdentity(s *settings.Settings) {
	if f.identity == "" {
		if err := natsconn.RefuseUnsigned(f.nats, "identity", f.allowUnsigned); err != nil {
			s.Wrong("identity", "%s", err)
		}
		return
	}
	identity, err := fleetkey.ReadIdentity(f.identity)
	if err != nil {
		s.Wrong("identity", "%s", err)
		return
	}
	cloud, addr, err := identity.Host.Address()
	switch given, _ := netip.ParseAddr(f.ip); {
	case err != nil:
		s.Wrong("identity", "%s", err)
	case f.ip != "" && given.Unmap() != addr, s.Given("cloud") && f.cloud != cloud:
		s.Wrong("identity", "%s belongs to host %s: omit --cloud and --ip, or give the identity of this host", f.identity, identity.Host.Name())
	default:
		f.cloud, f.ip, f.agentID = cloud, addr.String(), cmp.Or(f.agentID, identity.Host.AgentID())
	}
}

func (f *agentFlags) config() agent.Config {
	addr, _ := netip.ParseAddr(f.ip) // check has reported an invalid address
	return agent.Config{
		Cloud: f.cloud, Addr: addr, AgentID: f.agentID, Labels: f.labels.Map(), Version: command.Version(), DataDir: f.data, DrainTimeout: f.drain,
	}
}

func (f *agentFlags) run(ctx context.Context, p *daemon.Process) error {
	cfg := f.config()
	timing, err := timingFromEnv()
	if err != nil {
		return err
	}
	files, err := f.natsTLS.Open(p.Log)
	if err != nil {
		return err
	}
	link := natsconn.Config{
		URL: f.nats, TLS: files, Name: fmt.Sprintf("agent %d:%s", f.cloud, cfg.Addr), OnLost: p.Fail, Log: p.Log,
		InboxPrefix: agentproto.AgentInbox(f.cloud, cfg.Addr),
	}
	if f.allowUnsigned && f.identity == "" {
		p.Log.Warn("--allow-unauthenticated: NATS clients control this host")
	}
	if f.identity != "" {
		identity, err := fleetkey.OpenIdentity(f.identity, fmt.Sprintf("%d:%s", cfg.Cloud, cfg.Addr))
		if err != nil {
			return fmt.Errorf("--identity: %w", err)
		}
		if owned := identity.Current().Host.AgentID(); owned != f.agentID {
			p.Log.WithFields(logrus.Fields{"agent_id": f.agentID, "held": owned}).
				Warn("identity lacks the agent id: re-enroll with --agent-id")
		}
		go identity.Watch(ctx, p.Log)
		cfg.Keys = func() *fleetkey.Host { return identity.Current().Host }
		link.Credentials = func() ([]byte, error) { return []byte(identity.Current().NATS), nil }
	}
	conn, err := natsconn.Connect(link)
	if err != nil {
		return fmt.Errorf("--nats: %w", err)
	}
	defer conn.Close()
	cfg.Conn, cfg.Log, cfg.Meter, cfg.Crash = conn, p.Log, p.Metrics.Meter("agent"), crashpoint.FromEnv()
	cfg.Timing = timing
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	p.ReadyWhen(func(context.Context) error { return a.Ready() })
	return a.Run(ctx)
}
