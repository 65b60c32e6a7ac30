// Package logging creates a process's logger.
package logging

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/term"

	"github.com/procfleet/procfleet/internal/invalid"
)

// Formats of log lines.
const (
	FormatJSON = "json"
	FormatText = "text"
)

// Config of a logger; all fields are required.
type Config struct {
	Level  string // error, warn, info or debug
	Format string // FormatJSON or FormatText
	Out    io.Writer
}

// Validate returns all errors, each with the name of its field.
func (c Config) Validate() error {
	var errs []error
	if _, err := logrus.ParseLevel(c.Level); err != nil {
		errs = append(errs, invalid.Fieldf("Level", "%q is no level: use error, warn, info or debug", c.Level))
	}
	if c.Format != FormatJSON && c.Format != FormatText {
		errs = append(errs, invalid.Fieldf("Format", "%q is no format: use json or text", c.Format))
	}
	return errors.Join(errs...)
}

// New returns a new logger with this configuration; a process needs only one.
func New(cfg Config) (*logrus.Logger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("logging: %w", err)
	}
	level, err := logrus.ParseLevel(cfg.Level)
	if err != nil {
		return nil, err
	}
	log := logrus.New()
	log.SetOutput(cfg.Out)
	log.SetLevel(level)
	lines := safe{&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}}
	if cfg.Format == FormatText {
		lines = safe{&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"}}
	}
	log.SetFormatter(&bounded{Formatter: lines})
	return log, nil
}

// FormatFor returns the format for an output: FormatText for a terminal, otherwise
// FormatJSON.
func FormatFor(out io.Writer) string {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return FormatText
	}
	return FormatJSON
}
