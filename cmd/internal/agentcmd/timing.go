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

// timingVariable shortens the agent's own rhythm for tests and benchmarks, so
// that they do not take as long as hosts do: fields of [operate.Timing] in lower case, for
// example "sweep=200ms,max_delay=2s". It is not for hosts.
const timingVariable = "PROCFLEET_AGENT_TIMING"

// timingFromEnv reads what [timingVariable] asks for; nothing without it.
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
		if !field.IsValid() {
			return timing, fmt.Errorf("%q is no field of the agent's rhythm", name)
		}
		n, err := positive(field.Type(), value)
		if err != nil {
			return timing, fmt.Errorf("%s: %w", name, err)
		}
		field.SetInt(n)
	}
	return timing, nil
}

// positive reads the value of a field that holds a length of time or a number.
func positive(kind reflect.Type, text string) (int64, error) {
	if kind == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return 0, fmt.Errorf("%q is not a length of time above 0, for example 200ms", text)
		}
		return int64(d), nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%q is not a whole number above 0", text)
	}
	return n, nil
}

// snakeCase writes StopPoll as stop_poll, and CPUWindow as cpu_window.
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
