package operate

import (
	"cmp"
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

// Ledger stores the progress of operations and the records of processes. Its methods
// block until the write is durable; an error means that nothing was written.
type Ledger interface {
	// Execute records that an operation is about to act on the host, and later which
	// command it spawned.
	Execute(id journal.ID, e journal.Exec) error
	// Finish records the result of an operation, which ends it.
	Finish(id journal.ID, r agentproto.Result) error
	// SaveProcess stores the engine's record of a process; nil removes it.
	SaveProcess(key string, record json.RawMessage) error
}

// Config is what an engine needs.
type Config struct {
	Ledger Ledger
	Log    logrus.FieldLogger

	// Finished is called with each result when it is durable. It must not block.
	Finished func(journal.Op, agentproto.Result)

	// Restarted is called after each start command that was run to keep a process
	// alive. It must not block.
	Restarted func()

	// Changed is called whenever the state of a process that [Engine.Processes] returns
	// changes; measurements do not count. It must not block and must not call the engine.
	Changed func()

	// Emit is called with what the engine did or noticed without an operation. Kind, the
	// process, Message and Details are filled in. It must not block.
	Emit func(agentproto.Event)

	// InTime reports whether the server's time is still before a deadline. It must not
	// block. Default: by this host's clock.
	InTime func(deadline time.Time) bool

	AgentID  string // shown in statuses; "" = none
	Instance string // distinguishes this agent from every other one, and never changes; "" = there is no other on this machine
	RunDir   string // existing folder for the output of commands; absolute

	CommandLimit int // commands at a time; default 64
	StartLimit   int // automatic starts at a time; default 8
	// DownLimit bounds the processes that are remembered as stopped; the one that was
	// stopped longest ago is forgotten first. Default 4096.
	DownLimit int

	// Scopes has commands run outside of the agent's systemd unit, whose processes end
	// with the agent. Where that is impossible, they run in the unit.
	Scopes bool

	Timing Timing

	// Crash is called at named points of an operation (the Crash constants), for tests
	// that kill the agent there. May be nil.
	Crash func(point string)
}

// Points of [Config.Crash].
const (
	CrashBeforeExec = procop.CrashBeforeExec
	CrashAfterSpawn = procop.CrashAfterSpawn
	CrashBeforeDone = "agent.before-done" // the result is known, not durable
	CrashAfterDone  = "agent.after-done"  // the result is durable, not reported
)

// Timing holds the engine's intervals and timeouts. Zero fields get the default.
type Timing struct {
	Sweep           time.Duration // between queries of pid files and of processes that are not quiet; quiet ones are queried in every sixth sweep; default 5 s
	StopPoll        time.Duration // longest pause between queries of a process that is to end, which doubles from 5 ms; default 200 ms
	WindowPoll      time.Duration // between queries of a process that is to start; default 250 ms
	Settle          time.Duration // how long a started process must have kept its identity, and how long a successor or a pid file may take to appear; default 1 s
	ForegroundAfter time.Duration // least run of a start command that is accepted as the process itself; default 5 s
	KillWait        time.Duration // how long a killed process may take to end; default 5 s
	ReloadWait      time.Duration // longest wait after a reload before the process is queried; default 2 s
	KillGrace       time.Duration // between SIGTERM and SIGKILL of a hung command; default 3 s
	MaxDelay        time.Duration // longest back-off; default 5 min
	StableAfter     time.Duration // least run of a process that resets its failures; default 10 min
	FlapWindow      time.Duration // ten automatic starts within it make the engine give up; default 30 min
	LimitWindow     time.Duration // three terminations for a limit within it make the engine give up; default 1 h
	ProbeInterval   time.Duration // between the five attempts to start what was given up; default 10 min
	ProbeFor        time.Duration // how long after giving up attempts are made at most; default 2 h
	ConflictWait    time.Duration // how long a pid file may name another process, while the known one lives, before that is reported; default 5 s
	FreezeCheck     time.Duration // between checks for freezes that have ended; default 1 s
	StartEvery      time.Duration // between automatic starts on the host once StartBurst of them have been used up; default 3 s
	StartBurst      int           // automatic starts that may begin at once; each StartEvery allows one more; default 40
	HostPause       time.Duration // how long automatic starts wait after the host could not run another process; default 30 s
	BootGrace       time.Duration // least wait of automatic starts after the agent started on a host that has booted; default 30 s
	BootUptime      time.Duration // least wait of automatic starts after the boot; default 1 min
	LongRun         time.Duration // least run of a process whose first failure is followed by an immediate start; default 10 s
	RecoverDelay    time.Duration // least back-off right after the agent started, before jitter; default 2.5 s
	JournalRetry    time.Duration // between attempts to store a result; default 1 s
	Drain           time.Duration // how long Stop waits for running operations; default 10 s
	Inquiry         time.Duration // timeout of version and health commands, and of a status operation with both; default 9 s
	AnswerAge       time.Duration // how long their answers are valid for status operations; default 1 min
	VersionAge      time.Duration // age of a reported version after which the version command runs again; default 10 min
	Health          time.Duration // between health checks of a supervised process; default 30 s
	UsageSample     time.Duration // between measurements of processes with limits; default 5 s, thrice that on a host with 10,000 processes
	UsageWindow     time.Duration // CPU usage is the mean over it; default 1 min
	UsageArm        time.Duration // after its start a process is not limited for so long; default 1 min
	TakeDownGrace   time.Duration // between SIGTERM and SIGKILL of a process over its limit; default 10 s
	TakeDownSpacing time.Duration // between two terminations on the host; default 10 s
	TrimOutputs     time.Duration // between truncations of output files that daemons keep open; default 1 min
}

func (t Timing) withDefaults() Timing {
	defaults := map[*time.Duration]time.Duration{
		&t.Sweep: 5 * time.Second, &t.StopPoll: 200 * time.Millisecond, &t.WindowPoll: 250 * time.Millisecond,
		&t.Settle: time.Second, &t.ForegroundAfter: 5 * time.Second, &t.KillWait: 5 * time.Second,
		&t.ReloadWait: 2 * time.Second, &t.KillGrace: 3 * time.Second, &t.MaxDelay: 5 * time.Minute,
		&t.FlapWindow: 30 * time.Minute, &t.LimitWindow: time.Hour, &t.ProbeInterval: 10 * time.Minute,
		&t.FreezeCheck: time.Second, &t.StartEvery: 3 * time.Second, &t.HostPause: 30 * time.Second,
		&t.BootGrace: 30 * time.Second, &t.BootUptime: time.Minute,
		&t.ProbeFor: 2 * time.Hour, &t.ConflictWait: 5 * time.Second,
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
	c.CommandLimit, c.StartLimit, c.DownLimit = cmp.Or(c.CommandLimit, 64), cmp.Or(c.StartLimit, 8), cmp.Or(c.DownLimit, 4096)
	if c.Finished == nil {
		c.Finished = func(journal.Op, agentproto.Result) {}
	}
	if c.Restarted == nil {
		c.Restarted = func() {}
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Emit == nil {
		c.Emit = func(agentproto.Event) {}
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
