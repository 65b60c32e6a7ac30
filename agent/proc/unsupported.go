//go:build !linux

package proc

import (
	"context"
	"syscall"
	"time"
)

// NowTicks is not available here.
func NowTicks() (uint64, error) { return 0, ErrUnsupported }

// Identify is not available here.
func Identify(int) (Identity, error) { return Identity{}, ErrUnsupported }

// Alive is not available here and says false.
func Alive(Identity) bool { return false }

// Signal is not available here.
func Signal(Identity, syscall.Signal) error { return ErrUnsupported }

// ReadTable is not available here.
func ReadTable() (*Table, error) { return nil, ErrUnsupported }

// KillTree is not available here.
func KillTree(context.Context, Identity, KillScope) ([]Process, error) { return nil, ErrUnsupported }

// KillGroup is not available here.
func KillGroup(context.Context, Identity, time.Duration, ...Identity) error { return ErrUnsupported }

// GroupMembers is not available here.
func GroupMembers(Identity) ([]Process, error) { return nil, ErrUnsupported }

// Describe is not available here.
func Describe(Identity, Host, Sample) (Facts, error) { return Facts{}, ErrUnsupported }

// Measure is not available here.
func Measure(Identity, Host, Sample) (Facts, error) { return Facts{}, ErrUnsupported }

// PSS is not available here.
func PSS(Identity) (int64, error) { return 0, ErrUnsupported }

// ReadHost is not available here.
func ReadHost() (Host, error) { return Host{}, ErrUnsupported }

// ReadCPUTime is not available here.
func ReadCPUTime() (CPUTime, error) { return CPUTime{}, ErrUnsupported }

// OutputHeld cannot tell here, so that nothing in use is removed.
func OutputHeld(string) bool { return true }

// Finder is not available here.
type Finder struct{}

// NewFinder returns a finder that is always uncertain.
func NewFinder(*Accounts) *Finder { return &Finder{} }

// Find is always uncertain here.
func (*Finder) Find(context.Context, Target) Probe {
	return Probe{Verdict: Uncertain, Evidence: ErrUnsupported.Error()}
}

// Strays is not available here.
func (*Finder) Strays(KillScope) ([]Process, error) { return nil, ErrUnsupported }

// Watcher is not available here.
type Watcher struct{}

// NewWatcher is not available here.
func NewWatcher(bool) (*Watcher, error) { return nil, ErrUnsupported }

// Add is not available here.
func (*Watcher) Add(Identity, func(Identity)) (stop func(), err error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Watcher) Close() error { return nil }

// Runner is not available here.
type Runner struct{}

// NewRunner returns a runner that refuses every command, so that an agent on
// this system can answer.
func NewRunner(*Accounts) (*Runner, error) { return &Runner{}, nil }

// Start is not available here.
func (*Runner) Start(context.Context, Command) (*Execution, error) { return nil, ErrUnsupported }

// Execution is a command under way; there is none here.
type Execution struct{}

// Identity names no process.
func (*Execution) Identity() Identity { return Identity{} }

// Done is nil here.
func (*Execution) Done() <-chan struct{} { return nil }

// Output is empty here.
func (*Execution) Output() string { return "" }

// Result is empty here.
func (*Execution) Result() Result { return Result{} }

func signalName(sig syscall.Signal) string { return sig.String() }
