//go:build linux

package fleet

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/procfleet/procfleet/test/internal/images"
)

// redisClockFlags preload the library that adds the offset of [Node.SetClock] to
// the wall clock of a Redis server or a Sentinel. The Go programs of the images
// have a replaced time.Now instead.
var redisClockFlags = []string{"--env", "LD_PRELOAD=" + images.RedisClock, "--env", "REDISTEST_CLOCK=" + images.ClockFile}

// SetClock sets the node's wall clock to this machine's time plus ahead, which may
// be negative. The monotonic clock does not change.
func (n *Node) SetClock(ahead time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.clock == ahead {
		return nil
	}
	if !n.fleet.cfg.Clocks {
		return fmt.Errorf("%s has no adjustable clock", n)
	}
	if err := n.writeClock(ahead); err != nil {
		return err
	}
	n.faults.clock = ahead
	return nil
}

// writeClock writes the offset in place into the file that the node's programs have
// mapped.
func (n *Node) writeClock(ahead time.Duration) error {
	f, err := os.OpenFile(n.fleet.path(n.Name, images.ClockFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	return err
}
