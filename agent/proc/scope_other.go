//go:build !linux

package proc

import "context"

type scopes struct{}

// UseScopes is not available here.
func (*Runner) UseScopes(context.Context) error { return ErrUnsupported }
