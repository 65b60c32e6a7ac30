package procfleet

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Duration is a [time.Duration] that JSON and YAML encode as text ("90s",
// "1m30s") and decode from text or from a number of seconds.
type Duration time.Duration

// Seconds returns n seconds.
func Seconds(n int) Duration { return Duration(n) * Duration(time.Second) }

// Std returns d as a [time.Duration].
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String formats d as [time.Duration] does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON encodes d as text.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendQuote(nil, d.String()), nil
}

// UnmarshalJSON decodes "90s" or 90; null leaves d unchanged.
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
