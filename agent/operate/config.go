package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agentproto"
)

// Ledger makes durable what happens to operations and processes. Its methods
// block until that is so; an error means that nothing was written.
type Ledger interface {
	// Execute says that an operation is about to act on the host, and again
	// what it spawned.
	Execute(id journal.ID, e journal.Exec) error
	// Finish ends an operation.
	Finish(id journal.ID, r agentproto.Result) error
	// SaveProcess keeps the engine's record of a process; nil forgets it.
	SaveProcess(key string, record json.RawMessage) error
}

// Config is what an engine needs.
type Config struct {
	Ledger Ledger
	Log    logrus.FieldLogger

	// Finished is told each result once it is durable. It must not block.
	Finished func(journal.Op, agentproto.Result)

	// Restarted is told each start command that was run to keep a process
	// alive. It must not block.
	Restarted func()

	// Changed is told whenever what [Engine.Processes] says of a process becomes
	// different, figures apart. It must not block and must not call the engine.
	Changed func()

	// InTime reports whether the server's time is still before a deadline; it
	// must not block. Default: by this host's clock.
	InTime func(deadline time.Time) bool

	AgentID  string // shown in statuses; "" = none
	Instance string // tells this agent from every other one, and stays the same; "" = there is no other on this machine
	RunDir   string // existing folder for the output of commands; absolute

	CommandLimit int // commands at a time; default 64
	StartLimit   int // automatic starts at a time; default 8
	// DownLimit is how many processes that were stopped or killed are remembered
	// as such; what was stopped longest ago is forgotten first. Default 4096.
	DownLimit int

	Timing Timing

	// Crash is called at named points of an operation (the Crash constants), for
	// tests that kill the agent there. nil = nothing.
	Crash func(point string)
}

// Points of [Config.Crash].
const (
	CrashBeforeExec = "agent.before-exec" // the execution is durable, nothing is spawned
	CrashAfterSpawn = "agent.after-spawn" // the command runs, its identity is not durable
	CrashBeforeDone = "agent.before-done" // the outcome is known, nobody else knows it
	CrashAfterDone  = "agent.after-done"  // the result is durable, nobody was told
)

// Timing holds the engine's own rhythm. Zero fields get the default.
type Timing struct {
	Sweep           time.Duration // how often every process is looked at; default 5 s
	StopPoll        time.Duration // how often a stopping process is looked at; default 200 ms
	WindowPoll      time.Duration // how often a starting process is looked at; default 250 ms
	Settle          time.Duration // how long a started process must have kept its identity, a successor or a late pid file may take; default 1 s
	ForegroundAfter time.Duration // earliest acceptance of a start command that is the process itself; default 5 s
	KillWait        time.Duration // how long a killed process may take to go; default 5 s
	ReloadWait      time.Duration // at most how long after a reload the process is looked at; default 2 s
	KillGrace       time.Duration // between SIGTERM and SIGKILL of a hung command; default 3 s
	MaxDelay        time.Duration // longest back-off; default 5 min
	StableAfter     time.Duration // least time after which failures are forgotten; default 10 min
	RecoverDelay    time.Duration // least back-off right after the agent started, before jitter; default 2.5 s
	JournalRetry    time.Duration // between attempts to make a result durable; default 1 s
	Drain           time.Duration // how long Stop waits for operations under way; default 10 s
	TrimOutputs     time.Duration // how often output files that daemons keep open are trimmed; default 1 min
}

func (t Timing) withDefaults() Timing {
	defaults := map[*time.Duration]time.Duration{
		&t.Sweep: 5 * time.Second, &t.StopPoll: 200 * time.Millisecond, &t.WindowPoll: 250 * time.Millisecond,
		&t.Settle: time.Second, &t.ForegroundAfter: 5 * time.Second, &t.KillWait: 5 * time.Second,
		&t.ReloadWait: 2 * time.Second, &t.KillGrace: 3 * time.Second, &t.MaxDelay: 5 * time.Minute,
		&t.StableAfter: 10 * time.Minute, &t.RecoverDelay: 2500 * time.Millisecond, &t.JournalRetry: time.Second,
		&t.Drain: 10 * time.Second, &t.TrimOutputs: time.Minute,
	}
	for field, value := range defaults {
		if *field <= 0 {
			*field = value
		}
	}
	return t
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	if c.CommandLimit == 0 {
		c.CommandLimit = 64
	}
	if c.StartLimit == 0 {
		c.StartLimit = 8
	}
	if c.Finished == nil {
		c.Finished = func(journal.Op, agentproto.Result) {}
	}
	if c.Restarted == nil {
		c.Restarted = func() {}
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.DownLimit == 0 {
		c.DownLimit = 4096
	}
	if c.InTime == nil {
		c.InTime = func(deadline time.Time) bool { return time.Now().Before(deadline) }
	}
	if c.Crash == nil {
		c.Crash = func(string) {}
	}
	c.Timing = c.Timing.withDefaults()
	return c
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var errs []error
	if c.Ledger == nil {
		errs = append(errs, errors.New("ledger is missing"))
	}
	if c.Log == nil {
		errs = append(errs, errors.New("log is missing"))
	}
	if !filepath.IsAbs(c.RunDir) {
		errs = append(errs, fmt.Errorf("run folder %q is not absolute", c.RunDir))
	}
	if c.CommandLimit < 1 || c.StartLimit < 1 || c.DownLimit < 1 {
		errs = append(errs, fmt.Errorf("limits of %d commands, %d automatic starts and %d stopped processes must be at least 1", c.CommandLimit, c.StartLimit, c.DownLimit))
	}
	return errors.Join(errs...)
}
