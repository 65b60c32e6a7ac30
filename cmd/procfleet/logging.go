package main

import (
	"io"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/procfleet/procfleet/internal/telemetry"
)

// logFlags say what is logged and how.
type logFlags struct{ level, format string }

func (f *logFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.level, "log-level", "info", "error, warn, info or debug")
	flags.StringVar(&f.format, "log-format", "", "json or text (default: text on a terminal, else json)")
}

// logger returns the process's logger, which writes to out.
func (f *logFlags) logger(out io.Writer) (*logrus.Logger, error) {
	format := f.format
	if format == "" {
		format = telemetry.FormatJSON
		if isTerminal(out) {
			format = telemetry.FormatText
		}
	}
	log, err := telemetry.NewLogger(telemetry.LogConfig{Level: f.level, Format: format, Out: out})
	if err != nil {
		return nil, usageError("%w", err)
	}
	return log, nil
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func natsFlag(flags *pflag.FlagSet, url *string) {
	flags.StringVar(url, "nats", "nats://127.0.0.1:4222", "URL of NATS; several, separated by commas, of a cluster")
}

func redisFlag(flags *pflag.FlagSet, url *string) {
	flags.StringVar(url, "redis", "redis://127.0.0.1:6379/0", "URL of Redis: redis://[user:password@]host:port/db, rediss:// for TLS; "+
		"Sentinel redis://host:26379/0?master_name=NAME&addr=host2:26379; Cluster redis://host:6379?cluster=true&addr=host2:6379")
}

func httpFlags(flags *pflag.FlagSet, listen *string, allowUnauthenticated *bool) {
	flags.StringVar(listen, "http", "127.0.0.1:8080", "address to listen on for HTTP")
	flags.BoolVar(allowUnauthenticated, "allow-unauthenticated", false,
		"listen off loopback although callers are not authenticated; for test networks only")
}
