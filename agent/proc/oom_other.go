//go:build !linux

package proc

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
