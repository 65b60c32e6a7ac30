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

// NewOOMLog returns a log that knows nothing.
func NewOOMLog() *OOMLog { return &OOMLog{} }

// Close does nothing.
func (*OOMLog) Close() {}

// Note does nothing.
func (*OOMLog) Note() {}

// Killed knows nothing.
func (*OOMLog) Killed(Identity) bool { return false }

// punch is not available: no system but Linux is known to do it while others
// append.
func punch(*os.File, int64) error { return errors.ErrUnsupported }

func room(info os.FileInfo) int64 { return info.Size() }

// ReapOrphans does nothing here: only on Linux does this program run as the
// first process of a container.
func ReapOrphans(context.Context) {}
