package logging_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/telemetry/logging"
)

// Repeated warnings are omitted and counted. Other warnings and lines of other levels are not omitted.
func TestWhoCausesWarningsDoesNotFillTheLog(t *testing.T) {
	t.Parallel()
	for _, format := range []string{logging.FormatJSON, logging.FormatText} {
		var out bytes.Buffer
		log, err := logging.New(logging.Config{Level: "info", Format: format, Out: &out})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for n := range 10_000 {
			at := log.WithTime(begin.Add(time.Duration(n)*time.Microsecond)).WithField("host", n)
			at.Warn("message refused")
			at.Info("task accepted")
		}
		log.WithTime(begin.Add(time.Second)).Error("another trouble")
		for line, want := range map[string]int{"message refused": 100, "task accepted": 10_000, "another trouble": 1, "repeated lines suppressed": 0} {
			if got := strings.Count(out.String(), line); got != want {
				t.Errorf("%s: %q is in %d lines, want %d", format, line, got, want)
			}
		}
		out.Reset()
		log.WithTime(begin.Add(time.Minute)).Warn("message refused")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "repeated lines suppressed") || !strings.Contains(lines[0], "9900") || !strings.Contains(lines[1], "message refused") {
			t.Errorf("%s: a minute later:\n%s", format, out.String())
		}
		for _, line := range lines {
			if format == logging.FormatJSON && !json.Valid([]byte(line)) {
				t.Errorf("%s is no JSON", line)
			}
		}
		out.Reset()
		log.WithTime(begin.Add(2 * time.Minute)).Warn("message refused")
		if strings.Contains(out.String(), "repeated lines suppressed") {
			t.Errorf("%s: told twice:\n%s", format, out.String())
		}
	}
}
