package daemon

import (
	"fmt"
	"io"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/plaintext"
	"github.com/procfleet/procfleet/internal/telemetry/logging"
)

// Logs holds the flags of the log.
type Logs struct{ Level, Format string }

// Register adds the flags --log-level and --log-format.
func (l *Logs) Register(flags *pflag.FlagSet) {
	flags.StringVar(&l.Level, "log-level", "info", "log level: error, warn, info or debug")
	flags.StringVar(&l.Format, "log-format", "", "log format: json or text (default: text on a terminal)")
}

// Check reports invalid flags to s.
func (l *Logs) Check(s *settings.Settings) {
	s.Refused(l.config(io.Discard).Validate(), map[string]string{"Level": "log-level", "Format": "log-format"})
}

// Logger returns the process's logger, which writes to out.
func (l *Logs) Logger(out io.Writer) (*logrus.Logger, error) {
	cfg := l.config(plaintext.Under(out)) // escaping is done by the formatter, which may write colors
	if wrong, _ := invalid.Fields(cfg.Validate()); len(wrong) > 0 {
		return nil, fmt.Errorf("--log-%s: %w", strings.ToLower(wrong[0].Name), wrong[0].Problem)
	}
	return logging.New(cfg)
}

func (l *Logs) config(out io.Writer) logging.Config {
	format := l.Format
	if format == "" {
		format = logging.FormatFor(out)
	}
	return logging.Config{Level: l.Level, Format: format, Out: out}
}
