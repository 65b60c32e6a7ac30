package spelling

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	names := []string{"stop", "start", "restart", "version", "health_restart"}
	for word, want := range map[string]string{
		"stopp": "stop", "stop": "stop", "sttart": "start", "vversion": "version", "health-restart": "health_restart",
		"completely_different": "", "": "", strings.Repeat("stop", 1000): "",
	} {
		if got := Nearest(word, names); got != want {
			t.Errorf("%.20q: %q, want %q", word, got, want)
		}
	}
	if got := Nearest("bt", []string{"bb", "bat", "at"}); got != "at" {
		t.Errorf("of several equally similar names: %q, want the first in alphabetical order", got)
	}
}
