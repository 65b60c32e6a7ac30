package operate

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/journal"
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agentproto"
)

// Ledger persists the progress of operations and the records of processes. Its methods block
// until the write is durable; an error means that nothing was written.
type Ledger interface {
	// Begin marks an operation as begun. It returns an error if the operation has a result,
	// because it was canceled: the operation must not act then.
	Begin(id journal.ID) error
	// Execute records that an operation is about to act on the host, and later which
	// command it spawned.
	Execute(id journal.ID, e journal.Exec) error
	// Finish records the result of an operation, which ends it.
	Finish(id journal.ID, r agentproto.Result) error
	// SaveProcess stores the engine's record of a process; nil removes it.
	SaveProcess(key string, record json.RawMessage) error
}

// Config holds the dependencies and settings of an engine. Ledger, Log and all functions are
// required. No function may block.
type Config struct {
	Ledger Ledger
	Log    logrus.FieldLogger

	// Finished is called with each result when it is durable.
	Finished func(journal.Op, agentproto.Result)

	// Restarted is called after each start command that was run to keep a process alive.
	Restarted func()

	// Changed is called whenever a process in the result of [Engine.Processes] changes its
	// state; measurements do not count. It must not call the engine.
	Changed func()

	// Emit is called with each event that no operation caused. Kind, process, Message and
	// Details are set.
	Emit func(agentproto.Event)

	// InTime reports whether the server's time is still before a deadline.
	InTime func(deadline time.Time) bool

	AgentID  string // reported in statuses; "" = none
	Instance string // unique and permanent name of this agent; "" = the only agent on this machine
	RunDir   string // absolute path of an existing folder for the output of commands

	CommandLimit int // concurrent commands; default 64
	StartLimit   int // concurrent automatic starts; default 8
	// DownLimit bounds the processes that are remembered as stopped; the process that was
	// stopped longest ago is forgotten first. Default 4096.
	DownLimit int

	// Scopes runs commands outside of the agent's systemd unit, since processes of the unit
	// end with the agent. If that is impossible, commands run in the unit.
	Scopes bool

	Timing Timing

	// Crash is called at named points of an operation (the Crash constants), for tests
	// that kill the agent there.
	Crash func(point string)
}

// Points of [Config.Crash].
const (
	CrashBeforeExec = procop.CrashBeforeExec
	CrashAfterSpawn = procop.CrashAfterSpawn
	CrashBeforeDone = "agent.before-done" // the result is known, not persisted
	CrashAfterDone  = "agent.after-done"  // the result is persisted, not reported
)

// Timing holds the engine's intervals and timeouts. Zero fields get the default.
type Timing struct {
	procop.Timing

	Sweep            time.Duration // period of queries of pid files and processes; quiet processes are queried in every sixth sweep; default 5 s
	MaxDelay         time.Duration // longest back-off; default 5 min
	StableAfter      time.Duration // run time after which the failures of a process are reset; default 10 min
	FlapWindow       time.Duration // window in which ten automatic starts lead to giving up; default 30 min
	LimitWindow      time.Duration // window in which three terminations for a limit lead to giving up; default 1 h
	ProbeInterval    time.Duration // time between the five start attempts after giving up; default 10 min
	ProbeFor         time.Duration // time after giving up in which start attempts are made; default 2 h
	ConflictWait     time.Duration // time for which a pid file may name another process, while the known one lives, before an event; default 5 s
	FreezeCheck      time.Duration // period of checks for freezes that have ended; default 1 s
	StartEvery       time.Duration // time per further automatic start on the host once StartBurst is used up; default 3 s
	StartBurst       int           // automatic starts that may begin at once; each StartEvery adds one; default 40
	HostPause        time.Duration // pause of automatic starts after the host could not spawn another process; default 30 s
	BootGrace        time.Duration // least delay of automatic starts after the agent started on a rebooted host; default 30 s
	BootUptime       time.Duration // least uptime of the host for automatic starts; default 1 min
	LongRun          time.Duration // run time after which the first failure of a process is followed by an immediate start; default 10 s
	RecoverDelay     time.Duration // least back-off right after the agent started, before jitter; default 2.5 s
	JournalRetry     time.Duration // pause between attempts to persist a result; default 1 s
	Drain            time.Duration // longest wait of Stop for operations in progress; default 10 s
	Inquiry          time.Duration // timeout of version and health commands, and of a status operation that runs both; default 9 s
	AnswerAge        time.Duration // validity of version and health answers for status operations; default 1 min
	VersionAge       time.Duration // age of a reported version after which the version command runs again; default 10 min
	Health           time.Duration // period of the health checks of a supervised process; default 30 s
	UsageSample      time.Duration // period of the measurements of processes with limits; default 5 s, thrice that on a host with 10,000 processes
	UsageWindow      time.Duration // time over which CPU usage is averaged; default 1 min
	UsageArm         time.Duration // time after the start of a process in which no limit applies to it; default 1 min
	TerminateSpacing time.Duration // least time between two terminations on the host; default 10 s
	TrimOutputs      time.Duration // period of truncations of output files that daemons hold open; default 1 min
}

func (t Timing) withDefaults() Timing {
	defaults := map[*time.Duration]time.Duration{
		&t.Sweep: 5 * time.Second, &t.StopPoll: 200 * time.Millisecond, &t.WindowPoll: 250 * time.Millisecond,
		&t.Settle: time.Second, &t.ForegroundAfter: 5 * time.Second, &t.KillWait: 5 * time.Second, &t.BlockedWait: 15 * time.Second,
		&t.ReloadWait: 2 * time.Second, &t.KillGrace: 3 * time.Second, &t.MaxDelay: 5 * time.Minute,
		&t.FlapWindow: 30 * time.Minute, &t.LimitWindow: time.Hour, &t.ProbeInterval: 10 * time.Minute,
		&t.FreezeCheck: time.Second, &t.StartEvery: 3 * time.Second, &t.HostPause: 30 * time.Second,
		&t.BootGrace: 30 * time.Second, &t.BootUptime: time.Minute,
		&t.ProbeFor: 2 * time.Hour, &t.ConflictWait: 5 * time.Second,
		&t.StableAfter: 10 * time.Minute, &t.LongRun: 10 * time.Second, &t.RecoverDelay: 2500 * time.Millisecond, &t.JournalRetry: time.Second,
		&t.Drain: 10 * time.Second, &t.TrimOutputs: time.Minute,
		&t.UsageSample: 5 * time.Second, &t.UsageWindow: time.Minute, &t.UsageArm: time.Minute,
		&t.TerminateGrace: 10 * time.Second, &t.TerminateSpacing: 10 * time.Second,
		&t.Inquiry: 9 * time.Second, &t.AnswerAge: time.Minute, &t.VersionAge: 10 * time.Minute, &t.Health: 30 * time.Second,
	}
	for field, value := range defaults {
		*field = cmp.Or(*field, value)
	}
	t.StartBurst = cmp.Or(t.StartBurst, 40)
	return t
}

// WithDefaults returns a copy in which zero limits and intervals have their defaults.
func (c Config) WithDefaults() Config {
	c.CommandLimit, c.StartLimit, c.DownLimit = cmp.Or(c.CommandLimit, 64), cmp.Or(c.StartLimit, 8), cmp.Or(c.DownLimit, 4096)
	c.Timing = c.Timing.withDefaults()
	return c
}
