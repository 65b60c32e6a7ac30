package redisstore

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
)

// driverLog logs the messages of go-redis itself, such as failed dials and the
// nodes that a Sentinel found, at debug level; by default go-redis writes them
// to stderr. Errors that matter are also returned by a call.
type driverLog struct{ log logrus.FieldLogger }

// Printf is what go-redis calls.
func (d driverLog) Printf(_ context.Context, format string, v ...any) {
	d.log.WithField("said", fmt.Sprintf(format, v...)).Debug("Redis client message")
}
