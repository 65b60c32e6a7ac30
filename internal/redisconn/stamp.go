package redisconn

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/procfleet/procfleet"
)

// ErrDamaged means that a stored value or a reply cannot be parsed.
var ErrDamaged = errors.New("redis: a stored value is missing or damaged")

// StampWidth is the number of digits of a moment that a stored value contains.
const StampWidth = 16

// Stamp parses a moment that a stored value contains, in microseconds since the Unix
// epoch.
func Stamp(digits string) (time.Time, error) {
	us, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return time.Time{}, ErrDamaged
	}
	return Moment(us), nil
}

// StampText returns a moment as stored values contain it. The texts sort like the
// moments.
func StampText(at time.Time) string { return fmt.Sprintf("%0*d", StampWidth, at.UnixMicro()) }

// Moment converts microseconds since the Unix epoch; 0 is the zero time.
func Moment(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return procfleet.Number(us).Time()
}

// Highest is the highest number that was received from the servers. It never decreases.
type Highest struct{ atomic.Int64 }

// Raise sets h to n if n is larger.
func (h *Highest) Raise(n int64) {
	for {
		seen := h.Load()
		if n <= seen || h.CompareAndSwap(seen, n) {
			return
		}
	}
}

// NewToken returns a token that is unique to a call or to a write.
func NewToken() string { return rand.Text() }
