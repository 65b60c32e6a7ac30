//go:build !linux && !windows

package proc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// TicksPerSecond is the number of units of Identity.Start in a second.
const TicksPerSecond = 100

func unsupported[T any]() (T, error) {
	var nothing T
	return nothing, ErrUnsupported
}

// NowTicks returns ErrUnsupported.
func NowTicks() (uint64, error) { return unsupported[uint64]() }

// Identify returns ErrUnsupported.
func Identify(int) (Identity, error) { return unsupported[Identity]() }

// Signal returns ErrUnsupported.
func Signal(Identity, syscall.Signal) error { return ErrUnsupported }

// ReadTable returns ErrUnsupported.
func ReadTable() (*Table, error) { return unsupported[*Table]() }

// PSS returns ErrUnsupported.
func PSS(Identity) (int64, error) { return unsupported[int64]() }

// ReadHost returns ErrUnsupported.
func ReadHost() (Host, error) { return unsupported[Host]() }

// ReadCPUTime returns ErrUnsupported.
func ReadCPUTime() (CPUTime, error) { return unsupported[CPUTime]() }

// ReadCapacity returns ErrUnsupported.
func ReadCapacity() (Capacity, error) { return unsupported[Capacity]() }

// OutputHeld returns true, so that no file in use is removed.
func OutputHeld(string) bool { return true }

// Watcher cannot be created on this system.
type Watcher struct{}

// NewWatcher returns ErrUnsupported.
func NewWatcher(bool) (*Watcher, error) { return unsupported[*Watcher]() }

// Add returns ErrUnsupported.
func (*Watcher) Add(Identity, func(Death)) (stop func(), err error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Watcher) Close() error { return nil }

func bootID() (string, error)               { return unsupported[string]() }
func startClock() (time.Duration, error)    { return unsupported[time.Duration]() }
func startTime(Identity) (time.Time, error) { return unsupported[time.Time]() }
func readStat(int) (Stat, error)            { return unsupported[Stat]() }
func readPIDs() ([]int, error)              { return unsupported[[]int]() }
func inspect(string, Stat) (Process, error) { return unsupported[Process]() }
func exePath(int) (string, error)           { return unsupported[string]() }
func workDir(int) (string, error)           { return unsupported[string]() }
func readArgs(int) ([]string, error)        { return unsupported[[]string]() }
func (*Table) group(Identity) []Stat        { return nil }
func (*Table) session(Identity) []Stat      { return nil }
func markOf(int) string                     { return "" }
func hiddenPid(int) bool                    { return false }
func exhausted(error) bool                  { return false }
func diskTrouble(error) bool                { return false }
func stopProcess(Identity) error            { return ErrUnsupported }

// Continue returns ErrUnsupported.
func Continue(Identity) error { return ErrUnsupported }

const maxPid = 1 << 22

func programName(path string) string { return filepath.Base(path) }
func plainName(name string) string   { return name }

func plainPath(path string) string            { return path }
func uidOf(account Account) int               { return int(account.UID) }
func systemPath(string) bool                  { return false }
func decodeOutput(text []byte, _ bool) []byte { return text }
func signalName(sig syscall.Signal) string    { return sig.String() }

func readPidFile(string) (text []byte, written time.Time, err error) {
	return nil, time.Time{}, ErrUnsupported
}

func pidFileWritten(string) time.Time { return time.Time{} }
func fileWritten(string) time.Time    { return time.Time{} }

// RenameBeside returns ErrUnsupported.
func RenameBeside(string, string) error { return ErrUnsupported }

type job struct{}

func (job) close() {}

func keepInherited() error                               { return nil }
func rootDir() string                                    { return "/" }
func (*Runner) maySwitch(context.Context, Account) error { return ErrUnsupported }
func openOutput(string, Account) (*os.File, error)       { return unsupported[*os.File]() }
func awaitWritten(context.Context, Command) error        { return ErrUnsupported }
func startIn(*exec.Cmd, Command) (job, error)            { return unsupported[job]() }
func explainStart(_ Command, _ Account, err error) error { return err }
func identifyChild(int) (Identity, error)                { return unsupported[Identity]() }
func hint(Command, int, string) string                   { return "" }
func (*Runner) command(Command, Account, *os.File) (*exec.Cmd, error) {
	return unsupported[*exec.Cmd]()
}
