package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/audit"
	"github.com/procfleet/procfleet/internal/bus"
)

// auditFlags say where the audit log is kept.
type auditFlags struct {
	file             string
	stream, required bool
}

func (f *auditFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "audit-log", "", "file to which the audit log is written as well, a record in each line; rotate it by renaming it")
	flags.BoolVar(&f.stream, "audit-stream", true, "keep the audit log in the JetStream stream PROCFLEET_AUDIT, for procfleet audit")
	flags.BoolVar(&f.required, "audit-required", false, "do nothing without its record in the audit log: answer 503 while neither the file nor the stream takes it")
}

func (f *auditFlags) check(s *settings.Settings) {
	if f.required && f.file == "" && !f.stream {
		s.Wrong("audit-required", "needs a place for the audit log: give --audit-log as well, or leave out --audit-stream=false")
	}
}

// open returns the audit log, which runs until it is closed: after the roles
// and before the bus.
func (f *auditFlags) open(b *bus.Bus, p *daemon.Process) (*audit.Log, error) {
	cfg := audit.Config{Required: f.required, Log: p.Log, Meter: p.Metrics.Meter("audit")}
	if f.file != "" {
		file, err := audit.OpenFile(f.file)
		if err != nil {
			return nil, fmt.Errorf("--audit-log: %w", err)
		}
		cfg.Places = append(cfg.Places, file)
	}
	if f.stream {
		cfg.Places = append(cfg.Places, b.AuditPlace())
	}
	return audit.New(cfg)
}
