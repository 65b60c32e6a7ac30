package agentcmd

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agent/operate/procop"
)

func TestTimingIsReadByFieldNames(t *testing.T) {
	t.Parallel()
	got, err := parseTiming("sweep=200ms,stop_poll=20ms,max_delay=2s")
	want := operate.Timing{Timing: procop.Timing{StopPoll: 20 * time.Millisecond}, Sweep: 200 * time.Millisecond, MaxDelay: 2 * time.Second}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parseTiming(""); err != nil || got != (operate.Timing{}) {
		t.Errorf("nothing asked for gives %+v, %v", got, err)
	}
}

// TestEveryFieldOfTheTimingCanBeSet verifies that the variable can set every field.
func TestEveryFieldOfTheTimingCanBeSet(t *testing.T) {
	t.Parallel()
	for _, field := range reflect.VisibleFields(reflect.TypeFor[operate.Timing]()) {
		if field.Anonymous {
			continue // its fields are visible themselves
		}
		value := "3"
		if field.Type == reflect.TypeFor[time.Duration]() {
			value = "3ns"
		}
		got, err := parseTiming(snakeCase(field.Name) + "=" + value)
		if err != nil || reflect.ValueOf(got).FieldByIndex(field.Index).Int() != 3 {
			t.Errorf("%s: got %+v, %v", field.Name, got, err)
		}
	}
}

func TestWrongTimingIsNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"sweeps=1s": `"sweeps" is not a timing`, "Sweep=1s": `"Sweep" is not a timing`, "sweep": "sweep: ", "sweep=5": "sweep: ", "sweep=-1s": "sweep: ", "sweep=1s,": `"" is not a timing`,
	} {
		if _, err := parseTiming(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q in it", text, err, want)
		}
	}
}

func TestFieldNamesAreWrittenInSnakeCase(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"Sweep": "sweep", "StopPoll": "stop_poll", "CPUWindow": "cpu_window", "LimitCPU": "limit_cpu"} {
		if got := snakeCase(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
