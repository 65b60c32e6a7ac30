package web

import "testing"

func TestMessagesOfOneCauseDifferInNumbersAlone(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"pid 417 did not stop within 30 s", "pid 9 did not stop within 31 s", true},
		{"no agent on 0:10.0.0.1", "no agent on 2:10.0.12.7", true},
		{"command failed; exit=1", "command failed; exit=127", false},
		{"command failed; exit=1", "command failed; exit=1", true},
		{"cannot connect", "cannot bind", false},
	} {
		if got := causeOf(tt.a) == causeOf(tt.b); got != tt.same {
			t.Errorf("%q and %q: one cause %v, want %v", tt.a, tt.b, got, tt.same)
		}
	}
}
