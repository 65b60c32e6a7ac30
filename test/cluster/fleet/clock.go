//go:build linux

package fleet

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/procfleet/procfleet/test/internal/images"
)

// redisClockFlags have a Redis server or a Sentinel read its wall clock as
// [Node.SetClock] says. Programs in Go do so by how they were built.
var redisClockFlags = []string{"--env", "LD_PRELOAD=" + images.RedisClock, "--env", "REDISTEST_CLOCK=" + images.ClockFile}

// SetClock steps the node's wall clock to that of this machine and ahead, which
// may be negative, until the next step. Its monotonic clock is not changed.
func (n *Node) SetClock(ahead time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults.clock == ahead {
		return nil
	}
	if !n.fleet.cfg.Clocks {
		return fmt.Errorf("%s has a clock that cannot be set", n)
	}
	if err := n.writeClock(ahead); err != nil {
		return err
	}
	n.faults.clock = ahead
	return nil
}

// writeClock writes the file that the node's programs have mapped, in place.
func (n *Node) writeClock(ahead time.Duration) error {
	f, err := os.OpenFile(n.fleet.path(n.Name, images.ClockFile), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
	return err
}
