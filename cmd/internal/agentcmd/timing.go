package agentcmd

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/procfleet/procfleet/agent/operate"
)

// timingVariable is the environment variable that overrides the agent's intervals in
// tests and benchmarks. Its value has the fields of [operate.Timing] in snake case,
// for example "sweep=200ms,max_delay=2s".
const timingVariable = "PROCFLEET_AGENT_TIMING"

func timingFromEnv() (operate.Timing, error) {
	timing, err := parseTiming(os.Getenv(timingVariable))
	if err != nil {
		return timing, fmt.Errorf("%s: %w", timingVariable, err)
	}
	return timing, nil
}

func parseTiming(text string) (operate.Timing, error) {
	var timing operate.Timing
	if text == "" {
		return timing, nil
	}
	fields := reflect.ValueOf(&timing).Elem()
	for setting := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(setting, "=")
		field := fields.FieldByNameFunc(func(field string) bool { return snakeCase(field) == name })
		if !field.IsValid() || !field.CanInt() {
			return timing, fmt.Errorf("%q is not a timing of the agent", name)
		}
		n, err := positive(field.Type(), value)
		if err != nil {
			return timing, fmt.Errorf("%s: %w", name, err)
		}
		field.SetInt(n)
	}
	return timing, nil
}

// positive parses a positive duration or number.
func positive(kind reflect.Type, text string) (int64, error) {
	if kind == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return 0, fmt.Errorf("%q is not a positive duration, for example 200ms", text)
		}
		return int64(d), nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is not a positive integer", text)
	}
	return n, nil
}

// snakeCase converts StopPoll to stop_poll, and CPUWindow to cpu_window.
func snakeCase(name string) string {
	var b strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
