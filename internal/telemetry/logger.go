// Package telemetry makes what cmd hands to the roles for being watched: the
// logger, the metrics registry, the tracer provider. It links the OpenTelemetry
// SDK and the Prometheus exporter, so agents stay away from it; what they
// need of tracing is in tracecontext.
package telemetry

import (
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"
)

// Formats of log lines.
const (
	FormatJSON = "json"
	FormatText = "text"
)

// LogConfig of a logger; all fields are required.
type LogConfig struct {
	Level  string // error, warn, info or debug
	Format string // FormatJSON or FormatText
	Out    io.Writer
}

// NewLogger returns the one logger of a process.
func NewLogger(cfg LogConfig) (*logrus.Logger, error) {
	level, err := logrus.ParseLevel(cfg.Level)
	if err != nil {
		return nil, fmt.Errorf("log level %q: use error, warn, info or debug", cfg.Level)
	}
	log := logrus.New()
	log.SetOutput(cfg.Out)
	log.SetLevel(level)
	switch cfg.Format {
	case FormatJSON:
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	case FormatText:
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	default:
		return nil, fmt.Errorf("log format %q: use json or text", cfg.Format)
	}
	return log, nil
}
