package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/telemetry/logging"
)

// TestWhatIsQuotedMakesNoSecondLineAndSteersNoTerminal writes what a caller may
// have given into every part of an entry.
func TestWhatIsQuotedMakesNoSecondLineAndSteersNoTerminal(t *testing.T) {
	t.Parallel()
	for _, evil := range []string{
		"a\n{\"level\":\"info\",\"msg\":\"forged\"}", "a\r\nb", "\x1b[2J\x1b]0;title\a", "\u009b2J", "\xff\xfe\x9b", "\u202egnp.exe", "\u2028", "\x00", "\x7f",
		strings.Repeat("x", 1<<20),
	} {
		for _, format := range []string{logging.FormatJSON, logging.FormatText} {
			var out bytes.Buffer
			log, err := logging.New(logging.Config{Level: "info", Format: format, Out: &out})
			if err != nil {
				t.Fatal(err)
			}
			log.WithField("name", evil).WithError(errors.New(evil)).Info(evil)
			line := out.String()
			if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || strings.ContainsAny(line, "\x1b\u009b\u202e\u2028\x00\x7f\r\a") {
				t.Errorf("%s: %.30q was written as %.200q", format, evil, line)
			}
			if len(line) > 128<<10 {
				t.Errorf("%s: a line of %d bytes", format, len(line))
			}
			if format == logging.FormatJSON && !json.Valid(out.Bytes()) {
				t.Errorf("%.200q is no JSON", line)
			}
		}
	}
}
