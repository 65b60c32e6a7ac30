package procfleet

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Duration is a length of time that JSON and YAML write as text ("90s",
// "1m30s") and read from such text or from a plain number of seconds.
type Duration time.Duration

// Seconds returns n seconds.
func Seconds(n int) Duration { return Duration(n) * Duration(time.Second) }

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes d as [time.Duration] does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes d as text.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, d.String()), nil
}

// UnmarshalJSON reads "90s" or 90; null leaves d as it is.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	if len(data) > 0 && data[0] == '"' {
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		parsed, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration; write for example \"90s\" or a number of seconds", clip(text))
		}
		*d = Duration(parsed)
		return nil
	}
	seconds, err := strconv.ParseFloat(string(data), 64)
	if err != nil || math.Abs(seconds) > math.MaxInt64/float64(time.Second)/2 {
		return fmt.Errorf("%s is not a duration; write for example \"90s\" or a number of seconds", clip(string(data)))
	}
	*d = Duration(seconds * float64(time.Second))
	return nil
}
