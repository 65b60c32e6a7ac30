package logging_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/internal/telemetry/logging"
)

func TestLinesAreJSONWithTheirFields(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := logging.New(logging.Config{Level: "info", Format: logging.FormatJSON, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	log.WithField("component", "worker").Info("task finished")
	log.Debug("too detailed")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	if line["msg"] != "task finished" || line["component"] != "worker" {
		t.Errorf("line %v", line)
	}
}

func TestUnknownLevelAndFormatSayWhatToUse(t *testing.T) {
	t.Parallel()
	for _, cfg := range []logging.Config{{Level: "loud", Format: "json"}, {Level: "info", Format: "xml"}} {
		if _, err := logging.New(cfg); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%+v: error %v", cfg, err)
		}
	}
}
