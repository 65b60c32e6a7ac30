//go:build !linux

package proc

import (
	"context"
	"errors"
	"os"
)

type scopes struct{}

// UseScopes returns ErrUnsupported.
func (*Runner) UseScopes(context.Context) error { return ErrUnsupported }

// OOMLog is always empty on this system.
type OOMLog struct{}

// NewOOMLog returns an empty log.
func NewOOMLog() *OOMLog { return &OOMLog{} }

// Close does nothing.
func (*OOMLog) Close() {}

// Note does nothing.
func (*OOMLog) Note() {}

// Killed returns false.
func (*OOMLog) Killed(Identity) bool { return false }

// punch returns an error: only Linux is known to punch holes while other processes append
// to the file.
func punch(*os.File, int64) error { return errors.ErrUnsupported }

func room(info os.FileInfo) int64 { return info.Size() }

// ReapOrphans does nothing: this program is the first process of a container on Linux only.
func ReapOrphans(context.Context) {}
