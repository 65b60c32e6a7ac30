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

// On other systems every function that needs the system returns ErrUnsupported.

// TicksPerSecond is the number of units of Identity.Start in a second.
const TicksPerSecond = 100

const maxPid = 1 << 22

// Watcher cannot be created on this system.
type Watcher struct{}

type job struct{}

func unsupported[T any]() (T, error) {
	var nothing T
	return nothing, ErrUnsupported
}

func Continue(Identity) error                                       { return ErrUnsupported }
func Identify(int) (Identity, error)                                { return unsupported[Identity]() }
func NewWatcher() (*Watcher, error)                                 { return unsupported[*Watcher]() }
func OutputHeld(string) bool                                        { return true } // so that no file in use is removed
func ReadCPUTime() (CPUTime, error)                                 { return unsupported[CPUTime]() }
func ReadCapacity() (Capacity, error)                               { return unsupported[Capacity]() }
func ReadHost() (Host, error)                                       { return unsupported[Host]() }
func ReadStat(int) (Stat, error)                                    { return unsupported[Stat]() }
func ReadTable() (*Table, error)                                    { return unsupported[*Table]() }
func RenameInDir(string, string) error                              { return ErrUnsupported }
func Signal(Identity, syscall.Signal) error                         { return ErrUnsupported }
func (*Table) group(Identity) []Stat                                { return nil }
func (*Table) session(Identity) []Stat                              { return nil }
func (*Watcher) Add(Identity, func(Death)) (stop func(), err error) { return nil, ErrUnsupported }
func (*Watcher) Close() error                                       { return nil }
func (*Runner) command(Command, Account, *os.File) (*exec.Cmd, error) {
	return unsupported[*exec.Cmd]()
}
func (*Runner) maySwitch(context.Context, Account) error { return ErrUnsupported }
func (job) close()                                       {}
func awaitWritten(context.Context, Command) error        { return ErrUnsupported }
func bootID() (string, error)                            { return unsupported[string]() }
func decodeOutput(text []byte, _ bool) []byte            { return text }
func diskTrouble(error) bool                             { return false }
func exePath(int) (string, error)                        { return unsupported[string]() }
func exhausted(error) bool                               { return false }
func explainStart(_ Command, _ Account, err error) error { return err }
func fileWritten(string) time.Time                       { return time.Time{} }
func hiddenPid(int) bool                                 { return false }
func hint(Command, int, string) string                   { return "" }
func identifyChild(int) (Identity, error)                { return unsupported[Identity]() }
func inspect(string, Stat) (Process, error)              { return unsupported[Process]() }
func preventInheritance() error                          { return nil }
func markOf(int) string                                  { return "" }
func openOutput(string, Account) (*os.File, error)       { return unsupported[*os.File]() }
func pidFileWritten(string) time.Time                    { return time.Time{} }
func plainName(name string) string                       { return name }
func plainPath(path string) string                       { return path }
func programName(path string) string                     { return filepath.Base(path) }
func readArgs(int) ([]string, error)                     { return unsupported[[]string]() }
func readPIDs() ([]int, error)                           { return unsupported[[]int]() }
func readPSS(Identity) (int64, error)                    { return unsupported[int64]() }
func readPidFile(string) ([]byte, time.Time, error)      { return nil, time.Time{}, ErrUnsupported }
func rootDir() string                                    { return "/" }
func signalName(sig syscall.Signal) string               { return sig.String() }
func startClock() (time.Duration, error)                 { return unsupported[time.Duration]() }
func startIn(*exec.Cmd, Command) (job, error)            { return unsupported[job]() }
func startTime(Identity) (time.Time, error)              { return unsupported[time.Time]() }
func stopProcess(Identity) error                         { return ErrUnsupported }
func systemPath(string) bool                             { return false }
func uidOf(account Account) int                          { return int(account.UID) }
func workDir(int) (string, error)                        { return unsupported[string]() }
