// Package agentcmd is the command that runs an agent, shared by procfleet and
// the lean procfleet-agent.
package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/procfleet/procfleet/agent"
	"github.com/procfleet/procfleet/internal/crashpoint"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// ErrUsage is wrapped by errors of how the command was called.
var ErrUsage = errors.New("see --help")

// flags are what the user said.
type flags struct {
	nats      string
	cloud     int64
	ip        string
	agentID   string
	data      string
	logLevel  string
	logFormat string
}

// New returns the command. The version is announced to the servers.
func New(version string) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Operate and supervise the processes of this host",
		Long: `Take commands for this host from NATS, run them, verify processes and keep supervised ones alive.

SIGTERM stops the agent in good order; the processes that it supervises stay as they are, and the next
start takes them over. A second signal ends it at once.`,
		Example: "  procfleet-agent --nats nats://10.0.0.9:4222 --cloud 0 --ip 10.0.0.1 --data /var/lib/procfleet-agent",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q (%w)", args[0], ErrUsage)
			}
			return f.run(cmd.Context(), version, cmd.ErrOrStderr())
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.nats, "nats", "nats://127.0.0.1:4222", "URL of NATS; several, separated by commas, of a cluster")
	set.Int64Var(&f.cloud, "cloud", 0, "cloud area of this host")
	set.StringVar(&f.ip, "ip", "", "address of this host in its cloud area; required")
	set.StringVar(&f.agentID, "agent-id", "", "another name under which callers know this host")
	set.StringVar(&f.data, "data", "/var/lib/procfleet-agent", "folder for the agent's journal; belongs to one agent")
	set.StringVar(&f.logLevel, "log-level", "info", "error, warn, info or debug")
	set.StringVar(&f.logFormat, "log-format", "", "json or text (default: text on a terminal, else json)")
	return cmd
}

func (f *flags) run(ctx context.Context, version string, logs io.Writer) error {
	log, err := f.logger(logs)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, ErrUsage)
	}
	if f.ip == "" {
		return fmt.Errorf("--ip is required: the address of this host in its cloud area, for example 10.0.0.1 (%w)", ErrUsage)
	}
	addr, err := netip.ParseAddr(f.ip)
	if err != nil {
		return fmt.Errorf("--ip: %q is neither an IPv4 nor an IPv6 address, for example 10.0.0.1 (%w)", f.ip, ErrUsage)
	}
	conn, err := natsconn.Connect(natsconn.Config{
		URL: f.nats, Name: fmt.Sprintf("agent %d:%s", f.cloud, addr), Log: log,
	})
	if err != nil {
		return fmt.Errorf("--nats: %w (%w)", err, ErrUsage)
	}
	defer conn.Close()
	a, err := agent.New(agent.Config{
		Conn: conn, Cloud: f.cloud, Addr: addr, AgentID: f.agentID, Version: version, DataDir: f.data,
		Log: log, Crash: crashpoint.FromEnv(),
	})
	if err != nil {
		return fmt.Errorf("%w (%w)", err, ErrUsage)
	}
	return a.Run(ctx)
}

func (f *flags) logger(out io.Writer) (*logrus.Logger, error) {
	level, err := logrus.ParseLevel(f.logLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level %q: use error, warn, info or debug", f.logLevel)
	}
	log := logrus.New()
	log.SetOutput(out)
	log.SetLevel(level)
	file, isFile := out.(*os.File)
	switch {
	case f.logFormat == "text", f.logFormat == "" && isFile && term.IsTerminal(int(file.Fd())):
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	case f.logFormat == "json", f.logFormat == "":
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	default:
		return nil, fmt.Errorf("--log-format %q: use json or text", f.logFormat)
	}
	return log, nil
}
