package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// client is the name of this process in the processor times of floors.
const client = "client"

const (
	bareReports    = "procfleet.bench.report"
	bareReportsKey = "pf-bench:reports"
	barePace       = 100 * time.Millisecond // interval between bursts, as for simulated agents
)

// measureFloor measures the processor time to send the same bytes through NATS and write
// them to Redis without processing, minus the idle usage of NATS and Redis.
func (r Reports) measureFloor(ctx context.Context, s *system, size int, idle map[string]time.Duration) (map[string]time.Duration, error) {
	arriving := make(chan *nats.Msg, bareQueue)
	link, err := s.lab.connect()
	if err != nil {
		return nil, err
	}
	defer link.Close()
	if _, err := link.ChanSubscribe(bareReports, arriving); err != nil {
		return nil, err
	}
	if err := link.FlushTimeout(patience); err != nil {
		return nil, err
	}
	before, ownBefore, begun := s.lab.plant.cpu(), cpuTime(os.Getpid()), time.Now()
	sent, err := r.pace(ctx, s, size, arriving)
	if err != nil {
		return nil, err
	}
	took := time.Since(begun)
	used := spent(before, s.lab.plant.cpu())
	used[client] = cpuTime(os.Getpid()) - ownBefore
	for name := range used {
		used[name] = max(0, perSecondOf(used[name], took)-idle[name])
	}
	if got := float64(sent) / took.Seconds(); got < r.rate()*0.9 {
		return nil, fmt.Errorf("floor: %0.f reports a second instead of %0.f", got, r.rate())
	}
	return used, s.lab.redis.Unlink(ctx, bareReportsKey).Err()
}

// pace publishes messages of size bytes at the report rate of the agents, and writes the
// received messages to Redis. It returns the number of published messages.
func (r Reports) pace(ctx context.Context, s *system, size int, arriving <-chan *nats.Msg) (sent int, err error) {
	data := make([]byte, size)
	ticker := time.NewTicker(barePace)
	defer ticker.Stop()
	var batch []any
	written := 0
	write := func() error {
		if len(batch) == 0 {
			return nil
		}
		written += len(batch) / 2
		err := s.lab.redis.HSet(ctx, bareReportsKey, batch...).Err()
		batch = batch[:0]
		return err
	}
	begun := time.Now()
	for until := time.After(r.For); ; {
		select {
		case <-ctx.Done():
			return sent, context.Cause(ctx)
		case msg := <-arriving:
			batch = append(batch, strconv.Itoa((written+len(batch)/2)%r.Agents), msg.Data)
			if len(batch) == 2*bareBatch {
				err = write()
			}
		case <-ticker.C:
			for due := int(time.Since(begun).Seconds() * r.rate()); sent < due && err == nil; sent++ {
				err = s.lab.conn.Publish(bareReports, data)
			}
		case <-until:
			return sent, write()
		}
		if err != nil {
			return sent, err
		}
	}
}
