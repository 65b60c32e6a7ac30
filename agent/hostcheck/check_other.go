//go:build !linux

package hostcheck

import "context"

func check(context.Context, Host) []Finding { return nil }

func checkUnit(context.Context, int) []Finding { return nil }
