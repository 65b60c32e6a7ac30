//go:build !linux

package proc

import (
	"context"
	"errors"
	"os"
)

type scopes struct{}

// UseScopes is not available here.
func (*Runner) UseScopes(context.Context) error { return ErrUnsupported }

// OOMLog is not available here.
type OOMLog struct{}

// NewOOMLog returns a log without kills.
func NewOOMLog() *OOMLog { return &OOMLog{} }

// Close does nothing.
func (*OOMLog) Close() {}

// Note does nothing.
func (*OOMLog) Note() {}

// Killed returns false.
func (*OOMLog) Killed(Identity) bool { return false }

// punch is not available: only Linux is known to punch holes while other processes
// append.
func punch(*os.File, int64) error { return errors.ErrUnsupported }

func room(info os.FileInfo) int64 { return info.Size() }

// ReapOrphans does nothing: only on Linux is this program the first process of a
// container.
func ReapOrphans(context.Context) {}
