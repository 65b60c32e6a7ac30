package natsembed

import (
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"
)

// logger logs the lines of the server. Notices become debug lines: they matter to
// an operator of a broker, not of `procfleet up`.
type logger struct {
	log   logrus.FieldLogger
	fatal chan string // the first fatal line; Start returns it as its error
}

func newLogger(log logrus.FieldLogger) *logger {
	return &logger{log: log.WithField("component", "nats-server"), fatal: make(chan string, 1)}
}

func (l *logger) line(format string, v []any) logrus.FieldLogger {
	return l.log.WithField("detail", fmt.Sprintf(format, v...))
}

func (l *logger) Noticef(format string, v ...any) { l.line(format, v).Debug("notice") }
func (l *logger) Errorf(format string, v ...any)  { l.line(format, v).Error("error") }
func (l *logger) Debugf(format string, v ...any)  { l.line(format, v).Debug("debug") }
func (l *logger) Tracef(format string, v ...any)  { l.line(format, v).Debug("trace") }

// Warnf logs requests that JetStream rejects at debug level: dispatchers and
// workers send one on purpose, to detect whether the server is strict.
func (l *logger) Warnf(format string, v ...any) {
	if strings.Contains(fmt.Sprintf(format, v...), "Invalid JetStream request") {
		l.Debugf(format, v...)
		return
	}
	l.line(format, v).Warn("warning")
}

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default: // a consequence of the first
	}
}
