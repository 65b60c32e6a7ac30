package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
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

	// Tell is told what the engine did or noticed without having been asked to;
	// Kind, the process, Message and Details are filled in. It must not block.
	Tell func(agentproto.Event)

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

	// Scopes has commands run outside of the unit that the agent is part of,
	// because that ends with the agent. Where it cannot be, they run in it.
	Scopes bool

	Timing Timing

	// Crash is called at named points of an operation (the Crash constants), for
	// tests that kill the agent there. nil = nothing.
	Crash func(point string)
}

// Points of [Config.Crash].
const (
	CrashBeforeExec = procop.CrashBeforeExec
	CrashAfterSpawn = procop.CrashAfterSpawn
	CrashBeforeDone = "agent.before-done" // the outcome is known, nobody else knows it
	CrashAfterDone  = "agent.after-done"  // the result is durable, nobody was told
)

// Timing holds the engine's own rhythm. Zero fields get the default.
type Timing struct {
	Sweep           time.Duration // how often pid files and processes that are not quiet are looked at; a quiet process is in every sixth sweep; default 5 s
	StopPoll        time.Duration // longest pause between queries of a process that has to end, which double from 5 ms; default 200 ms
	WindowPoll      time.Duration // how often a starting process is looked at; default 250 ms
	Settle          time.Duration // how long a started process must have kept its identity, a successor or a late pid file may take; default 1 s
	ForegroundAfter time.Duration // earliest acceptance of a start command that is the process itself; default 5 s
	KillWait        time.Duration // how long a killed process may take to go; default 5 s
	ReloadWait      time.Duration // at most how long after a reload the process is looked at; default 2 s
	KillGrace       time.Duration // between SIGTERM and SIGKILL of a hung command; default 3 s
	MaxDelay        time.Duration // longest back-off; default 5 min
	StableAfter     time.Duration // least time after which failures are forgotten; default 10 min
	FlapWindow      time.Duration // ten automatic starts within it mean giving up; default 30 min
	LimitWindow     time.Duration // three take-downs for a limit within it mean giving up; default 1 h
	ProbeInterval   time.Duration // between the five attempts to start what was given up; default 10 min
	ProbeFor        time.Duration // how long after giving up they are made at most; default 2 h
	RivalWait       time.Duration // how long a pid file may name another process while the known one lives before that is told; default 5 s
	FreezeCheck     time.Duration // how often it is looked for freezes that have ended; default 1 s
	StartEvery      time.Duration // between automatic starts on the host once StartBurst of them have been used up; default 3 s
	StartBurst      int           // automatic starts that may come at once; one is gained back in each StartEvery; default 40
	HostPause       time.Duration // how long automatic starts wait when the host had no room for one; default 30 s
	BootGrace       time.Duration // how long after the agent started on a host that has booted automatic starts wait at least; default 30 s
	BootUptime      time.Duration // and how long after the boot; default 1 min
	LongRun         time.Duration // least run of a process after which its first failure is followed by a start at once; default 10 s
	RecoverDelay    time.Duration // least back-off right after the agent started, before jitter; default 2.5 s
	JournalRetry    time.Duration // between attempts to make a result durable; default 1 s
	Drain           time.Duration // how long Stop waits for operations under way; default 10 s
	Inquiry         time.Duration // longest time for the commands that tell version and health, and for a status with all that it asks; default 9 s
	AnswerAge       time.Duration // how long their answers are shown without asking again; default 1 min
	VersionAge      time.Duration // how old the version of a reported process may be before it is asked for again; default 10 min
	Health          time.Duration // how often the health of a supervised process is asked for; default 30 s
	UsageSample     time.Duration // how often processes with limits are measured; default 5 s, thrice that on a host with 10,000 processes
	UsageWindow     time.Duration // CPU counts as the mean over it; default 1 min
	UsageArm        time.Duration // how long a process may use what it likes after its start; default 1 min
	TakeDownGrace   time.Duration // between SIGTERM and SIGKILL of a process over its limit; default 10 s
	TakeDownSpacing time.Duration // between two take-downs on the host; default 10 s
	TrimOutputs     time.Duration // how often output files that daemons keep open are trimmed; default 1 min
}

func (t Timing) withDefaults() Timing {
	defaults := map[*time.Duration]time.Duration{
		&t.Sweep: 5 * time.Second, &t.StopPoll: 200 * time.Millisecond, &t.WindowPoll: 250 * time.Millisecond,
		&t.Settle: time.Second, &t.ForegroundAfter: 5 * time.Second, &t.KillWait: 5 * time.Second,
		&t.ReloadWait: 2 * time.Second, &t.KillGrace: 3 * time.Second, &t.MaxDelay: 5 * time.Minute,
		&t.FlapWindow: 30 * time.Minute, &t.LimitWindow: time.Hour, &t.ProbeInterval: 10 * time.Minute,
		&t.FreezeCheck: time.Second, &t.StartEvery: 3 * time.Second, &t.HostPause: 30 * time.Second,
		&t.BootGrace: 30 * time.Second, &t.BootUptime: time.Minute,
		&t.ProbeFor: 2 * time.Hour, &t.RivalWait: 5 * time.Second,
		&t.StableAfter: 10 * time.Minute, &t.LongRun: 10 * time.Second, &t.RecoverDelay: 2500 * time.Millisecond, &t.JournalRetry: time.Second,
		&t.Drain: 10 * time.Second, &t.TrimOutputs: time.Minute,
		&t.UsageSample: 5 * time.Second, &t.UsageWindow: time.Minute, &t.UsageArm: time.Minute,
		&t.TakeDownGrace: 10 * time.Second, &t.TakeDownSpacing: 10 * time.Second,
		&t.Inquiry: 9 * time.Second, &t.AnswerAge: time.Minute, &t.VersionAge: 10 * time.Minute, &t.Health: 30 * time.Second,
	}
	for field, value := range defaults {
		if *field <= 0 {
			*field = value
		}
	}
	if t.StartBurst <= 0 {
		t.StartBurst = 40
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
	if c.Tell == nil {
		c.Tell = func(agentproto.Event) {}
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
