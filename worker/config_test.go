package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/worker"
	"github.com/procfleet/procfleet/worker/deliver"
)

func TestConfigNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := worker.New(worker.Config{Limits: worker.Limits{Parked: -1}, Timing: worker.Timing{Deliver: deliver.Timing{AcceptWindow: time.Minute}}})
	if err == nil {
		t.Fatal("an empty Config is accepted")
	}
	for _, field := range []string{"Conn", "Bus", "Store", "Parked", "AcceptWindow"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}
