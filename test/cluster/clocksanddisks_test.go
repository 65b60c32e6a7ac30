//go:build cluster && linux

package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/procfleet/procfleet/test/cluster/fleet"
	"github.com/procfleet/procfleet/test/internal/images"
)

// wrong is the error of wrong clocks: more than any deadline of the load, and less
// than the validity of certificates permits.
const wrong = 30 * time.Minute

// clockAndDiskScenarios need a fleet with adjustable clocks, small disks and two
// replicas of Redis.
var clockAndDiskScenarios = []scenario{
	{
		name: "clocks of workers are wrong", story: "30 minutes ahead and behind",
		do: func(s *stage) error { return s.apart(long, "worker-1", "worker-2") },
	},
	{
		name: "clocks of dispatchers are wrong", story: "30 minutes ahead and behind",
		do: func(s *stage) error { return s.apart(long, "dispatcher-1", "dispatcher-2") },
	},
	{
		name: "clocks of agents step", story: "during commands, 30 minutes forward and back, then to the correct time",
		do: func(s *stage) error { return s.apart(long, "agent-2", "agent-11") },
	},
	{
		name: "hosts boot with wrong clocks", story: "30 minutes ahead and behind; 12 s later they step to the correct time",
		do: func(s *stage) error {
			return errors.Join(
				s.begin((*fleet.Node).Kill, "agent-3", "agent-10"), s.apart(0, "agent-3", "agent-10"),
				s.begin((*fleet.Node).Start, "agent-3", "agent-10"), s.hold(short))
		},
	},
	{
		name: "clocks of the NATS servers are wrong", story: "30 minutes ahead and behind",
		do: func(s *stage) error { return s.apart(long, "nats-1", "nats-2") },
	},
	{
		name: "the clocks of Redis step forward and back", story: "by one minute",
		do: func(s *stage) error {
			ahead := func(n *fleet.Node) error { return n.SetClock(time.Minute) }
			return errors.Join(s.all(ahead, s.Nodes(fleet.Redis)...), s.hold(long))
		},
	},
	{
		name: "the disk of one NATS server is full", story: "the leader of `PROCFLEET_OPS`; then space is freed, and the server is restarted",
		do: func(s *stage) error { return s.leader("PROCFLEET_OPS", (*fleet.Node).FillDisk, long) },
	},
	{
		name: "the disks of all NATS servers are full", story: "for 12 s; then space is freed, and the servers are restarted",
		do: func(s *stage) error {
			return errors.Join(s.all((*fleet.Node).FillDisk, s.Nodes(fleet.NATS)...), s.hold(short))
		},
	},
	{
		name: "the disk of the Redis master is full", failsOver: true, story: "the master rejects writes",
		do: func(s *stage) error { return s.master((*fleet.Node).FillDisk, long) },
	},
	{
		name: "disks of hosts are full", cut: true, story: "of two agents",
		do: func(s *stage) error { return s.during(long, (*fleet.Node).FillDisk, "agent-4", "agent-9") },
	},
	{
		name: "agents lose their data folders", cut: true, story: "two agents start as reinstalled agents",
		do: func(s *stage) error {
			return errors.Join(s.begin((*fleet.Node).Wipe, "agent-5", "agent-8"), s.hold(short/4), s.repair("agent-5", "agent-8"), s.hold(short))
		},
	},
	{
		name: "an agent is cloned", story: "a second agent runs with a copy of the data folder and the identity",
		do: func(s *stage) error {
			remove, err := s.Clone(s.ctx, s.Node("agent-6"))
			if err != nil {
				return err
			}
			return errors.Join(s.hold(long), remove())
		},
	},
	{
		name: "a NATS server loses its data folder", story: "the leader of `PROCFLEET_OPS`; after 12 s it receives its streams from the other servers",
		do: func(s *stage) error { return s.leader("PROCFLEET_OPS", (*fleet.Node).Wipe, short) },
	},
	{
		name: "a Redis replica loses its data folder", failsOver: true, story: "after 12 s it receives the data from the master",
		do: func(s *stage) error { return s.replica((*fleet.Node).Wipe, short) },
	},
	{
		name: "the outdated one of two Redis replicas is promoted", failsOver: true,
		story: "`--redis-wait-replicas 2`: one of two replicas is cut off for 12 s; then the master is killed and the other replica is paused",
		do:    (*stage).promoteTheWrongOne,
	},
}

// withClocksAndDisks runs clockAndDiskScenarios.
func withClocksAndDisks(t *testing.T) (outcomes []*outcome) {
	t.Helper()
	if !anySelected(t, clockAndDiskScenarios, "") {
		return nil
	}
	with := buildImages(t, images.Builder{Clocks: true})
	t.Run("clocks and disks", func(t *testing.T) {
		f := fleet.Start(t, fleet.Config{
			Images: with, RedisReplicas: 2, WaitReplicas: 2, LightAgents: lightAgents, SmallDisks: true, Clocks: true,
		})
		for i, sc := range clockAndDiskScenarios {
			if selected(t, sc.name) {
				o := &outcome{name: sc.name, story: sc.story}
				outcomes = append(outcomes, o)
				o.play(t, f, fmt.Sprintf("h%d", i+1), sc.run)
			}
		}
	})
	return outcomes
}

// apart sets the clock of one node ahead and the clock of another behind.
func (s *stage) apart(d time.Duration, ahead, behind string) error {
	return errors.Join(s.Node(ahead).SetClock(wrong), s.Node(behind).SetClock(-wrong), s.hold(d))
}

func (s *stage) promoteTheWrongOne() error {
	master, err := s.Master(s.ctx)
	if err != nil {
		return err
	}
	replicas := s.others(master, fleet.Redis)
	behind, good := replicas[0], replicas[1]
	if err := errors.Join(behind.Isolate(master), s.hold(short), good.Pause(), master.Kill(), behind.Reconnect()); err != nil {
		return err
	}
	return s.hold(long)
}
