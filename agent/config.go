package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/fleetkey"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/label"
)

// Config configures an agent. Conn, Addr, DataDir and Log are required.
type Config struct {
	// Conn is a connection that reconnects without limit; it need not be connected yet. The
	// caller closes it after Run has returned.
	Conn *nats.Conn

	Cloud   int64      // cloud area; default 0
	Addr    netip.Addr // address of this host in its cloud area
	AgentID string     // alternative name of this host, at most 1,024 bytes; default none
	Version string     // announced to the servers; default "unknown"
	// Labels are the labels of this host, announced to the servers in addition to its facts
	// (see [label.Facts]); default none.
	Labels map[string]string

	// Keys returns the current keys of this host, which sign its messages and verify
	// messages of servers. Default nil: messages are neither signed nor verified.
	Keys func() *fleetkey.Host

	// DataDir is the data folder, relative to the working directory. It is created if missing.
	DataDir string
	// PresenceInterval is the time between announcements, ± 10 %; default 30 s.
	// Servers consider an agent disconnected after 90 s.
	PresenceInterval time.Duration
	// ReportInterval is the time between reports of all processes, ± 10 %; changes
	// are reported within a second. Default 30 s.
	ReportInterval time.Duration
	// DrainTimeout is the maximum wait for running commands when the agent stops;
	// afterwards the commands continue without the agent. Default 10 s.
	DrainTimeout time.Duration

	Log logrus.FieldLogger

	Meter metric.Meter // creates the metrics; default none

	Timing operate.Timing // intervals of supervision; zero fields have their defaults

	// Machine, if set, replaces the host; see [Machine].
	Machine *Machine

	// Crash, if set, is called when an operation reaches a point (the Crash constants of
	// this package and of agent/operate). It is for tests that kill the agent at that point.
	Crash func(point string)
}

// Points of [Config.Crash] in this package; the others are in agent/operate.
const (
	CrashReceived     = "agent.received"      // the command is journaled, no reply is sent yet
	CrashCanceled     = "agent.canceled"      // the decisions of a cancel are journaled, no reply is sent yet
	CrashAfterReceipt = "agent.after-receipt" // a worker acknowledged results, the journal has not recorded it yet
)

// WithDefaults returns a copy in which zero fields have their defaults.
func (c Config) WithDefaults() Config {
	c.Version = cmp.Or(c.Version, "unknown")
	c.PresenceInterval = cmp.Or(c.PresenceInterval, 30*time.Second)
	c.ReportInterval = cmp.Or(c.ReportInterval, 30*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.Meter = cmp.Or[metric.Meter](c.Meter, noop.Meter{})
	c.Addr = c.Addr.Unmap()
	if c.Keys == nil {
		c.Keys = func() *fleetkey.Host { return nil }
	}
	if c.Crash == nil {
		c.Crash = func(string) {}
	}
	return c
}

// maxAgentID is the longest agent id that servers store, in bytes. A longer id would make
// events too large for their stream.
const maxAgentID = 1 << 10

// Validate returns an error that names each invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Conn == nil {
		errs = append(errs, invalid.Fieldf("Conn", "a connection is required"))
	}
	if c.Cloud < 0 {
		errs = append(errs, invalid.Fieldf("Cloud", "cloud area %d is negative", c.Cloud))
	}
	switch {
	case !c.Addr.IsValid():
		errs = append(errs, invalid.Fieldf("Addr", "the host's address is required, for example 10.0.0.1"))
	case c.Addr.Zone() != "", c.Addr.IsUnspecified(), c.Addr.IsMulticast():
		errs = append(errs, invalid.Fieldf("Addr", "%s is not the address of one host", c.Addr))
	}
	if len(c.AgentID) > maxAgentID {
		errs = append(errs, invalid.Fieldf("AgentID", "is %d bytes long, at most %d are allowed", len(c.AgentID), maxAgentID))
	}
	if c.DataDir == "" {
		errs = append(errs, invalid.Fieldf("DataDir", "a data folder is required, for example /var/lib/procfleet-agent"))
	}
	if err := label.CheckOwn(c.Labels); err != nil {
		errs = append(errs, invalid.Fieldf("Labels", "%w", err))
	}
	for field, d := range map[string]time.Duration{
		"PresenceInterval": c.PresenceInterval, "ReportInterval": c.ReportInterval, "DrainTimeout": c.DrainTimeout,
	} {
		if d < 0 {
			errs = append(errs, invalid.Fieldf(field, "%v is negative", d))
		}
	}
	if c.Log == nil {
		errs = append(errs, invalid.Fieldf("Log", "a logger is required"))
	}
	return errors.Join(errs...)
}

// host returns the name of this host in messages: "<cloud area>:<ip>".
func (c *Config) host() string { return fmt.Sprintf("%d:%s", c.Cloud, c.Addr) }

func (c *Config) subject() string { return agentproto.AgentSubject(c.Cloud, c.Addr) }

// Machine replaces the host in simulations of whole fleets in one process.
type Machine struct {
	Engine  func(operate.Config) (Engine, error) // creates the engine, which simulates the operations
	Wall    func() time.Time                     // the host's wall clock
	Elapsed func() time.Duration                 // time since the host's boot, including suspended time
}

func (m *Machine) newClock() *clock {
	return &clock{known: make(chan struct{}), read: func() reading {
		return reading{wall: m.Wall().Round(0), monotonic: m.Elapsed()}
	}}
}
