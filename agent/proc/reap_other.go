//go:build !linux

package proc

import "context"

// ReapOrphans does nothing here: only on Linux does this program run as the
// first process of a container.
func ReapOrphans(context.Context) {}
