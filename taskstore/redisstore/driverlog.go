package redisstore

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
)

// driverLog takes what go-redis says by itself: every dial that failed, every
// node that a Sentinel found. By default it writes that to stderr, between the
// lines of whoever logs there. It is for those who search: what went wrong for
// good is also the error of a call.
type driverLog struct{ log logrus.FieldLogger }

// Printf is what go-redis calls.
func (d driverLog) Printf(_ context.Context, format string, v ...any) {
	d.log.WithField("said", fmt.Sprintf(format, v...)).Debug("Redis client message")
}
