package bus

import (
	"testing"

	"github.com/procfleet/procfleet"
)

func TestSubjectsAreWhatTheirCommentsShow(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"procfleet.op.s.0":                    opsSubject(procfleet.LaneSmall, 0),
		"procfleet.op.s.*":                    opsOfLane(procfleet.LaneSmall),
		"procfleet.hostevent.0":               hostEventSubject(0),
		"procfleet.progress.1795239322123456": hintSubject(1_795_239_322_123_456),
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
