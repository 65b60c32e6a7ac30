//go:build !linux

package proc

import (
	"context"
	"errors"
	"os"
)

// Systems other than Linux have no systemd scopes, no log of the out-of-memory killer, and
// no orphans that this program has to reap.

type scopes struct{}

// OOMLog is always empty on this system.
type OOMLog struct{}

func NewOOMLog() *OOMLog                        { return &OOMLog{} }
func (*OOMLog) Close()                          {}
func (*OOMLog) Poll()                           {}
func (*OOMLog) Killed(Identity) bool            { return false }
func (*Runner) UseScopes(context.Context) error { return ErrUnsupported }
func ReapOrphans(context.Context)               {}
func diskUsage(info os.FileInfo) int64          { return info.Size() }
func skipHole(_ *os.File, offset int64) int64   { return offset }

// openAs is not possible: only Linux has rights of a single thread.
func openAs(Account, string) (*os.File, error) { return nil, ErrUnsupported }

// FileNumber returns ErrUnsupported.
func FileNumber(*os.File) (int64, error) { return 0, ErrUnsupported }

func punch(*os.File, int64) error { return errors.ErrUnsupported } // only Linux can punch holes while other processes append
