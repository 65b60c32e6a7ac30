package dialect

import "testing"

// TestMessagesNameFieldsAsTheCallerDoes: callers of the published APIs do not know control.stop.
func TestMessagesNameFieldsAsTheCallerDoes(t *testing.T) {
	t.Parallel()
	for _, m := range []struct{ stored, native, published string }{
		{"success", "success", "success"},
		{
			"bad spec: control.stop (stop_cmd) is empty, and stop needs it",
			"bad spec: control.stop is empty, and stop needs it", "bad spec: stop_cmd is empty, and stop needs it",
		},
		{
			"alive.start_check_begin (start_check_begin_time, start_check_secs) 1 s is above 0.5 s (the timeout)",
			"alive.start_check_begin 1 s is above 0.5 s (the timeout)", "start_check_begin_time, start_check_secs 1 s is above 0.5 s (the timeout)",
		},
		{"start: command failed (exit 3)", "start: command failed (exit 3)", "start: command failed (exit 3)"},
	} {
		if got := nativeNames(m.stored); got != m.native {
			t.Errorf("native: %q, want %q", got, m.native)
		}
		if got := publishedNames(m.stored); got != m.published {
			t.Errorf("published: %q, want %q", got, m.published)
		}
	}
}
