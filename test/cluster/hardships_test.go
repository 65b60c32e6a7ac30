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

// wrong is by how much clocks are wrong: more than any deadline of the load,
// and less than certificates allow.
const wrong = 30 * time.Minute

// hardships are scenarios on a fleet with clocks that can be set, disks that can
// be filled, and two replicas of Redis.
var hardships = []scenario{
	{
		name: "clocks of workers are wrong", story: "for 30 s the clock of one worker is 30 minutes ahead and that of another 30 minutes behind; then both are right again",
		do: func(s *stage) error { return s.apart(long, "worker-1", "worker-2") },
	},
	{
		name: "clocks of dispatchers are wrong", story: "for 30 s the clock of one dispatcher is 30 minutes ahead and that of the other 30 minutes behind; then both are right again",
		do: func(s *stage) error { return s.apart(long, "dispatcher-1", "dispatcher-2") },
	},
	{
		name: "clocks of agents step", story: "the clock of one host steps 30 minutes ahead and that of another 30 minutes back; 30 s later they step back, in the middle of commands",
		do: func(s *stage) error { return s.apart(long, "agent-2", "agent-11") },
	},
	{
		name: "hosts come up with wrong clocks", story: "SIGKILL of two agents with all processes of their hosts; they start with clocks that are 30 minutes ahead and behind, and step to the right time 12 s later",
		do: func(s *stage) error {
			return errors.Join(
				s.begin((*fleet.Node).Kill, "agent-3", "agent-10"), s.apart(0, "agent-3", "agent-10"),
				s.begin((*fleet.Node).Start, "agent-3", "agent-10"), s.hold(short))
		},
	},
	{
		name: "clocks of the NATS servers are wrong", story: "for 30 s one NATS server is 30 minutes ahead and another 30 minutes behind; then both are right again",
		do: func(s *stage) error { return s.apart(long, "nats-1", "nats-2") },
	},
	{
		name: "Redis' clock steps ahead and back", story: "the clocks of all Redis servers step one minute ahead, and 30 s later back",
		do: func(s *stage) error {
			ahead := func(n *fleet.Node) error { return n.SetClock(time.Minute) }
			return errors.Join(s.all(ahead, s.Nodes(fleet.Redis)...), s.hold(long))
		},
	},
	{
		name: "a broker's disk is full", story: "the disk of the NATS server that leads `PROCFLEET_OPS` has no free byte for 30 s; then it has, and the server is restarted",
		do: func(s *stage) error { return s.leader("PROCFLEET_OPS", (*fleet.Node).FillDisk, long) },
	},
	{
		name: "disks of all brokers are full", story: "the disks of all three NATS servers have no free byte for 12 s; then they have, and the servers are restarted",
		do: func(s *stage) error {
			return errors.Join(s.all((*fleet.Node).FillDisk, s.Nodes(fleet.NATS)...), s.hold(short))
		},
	},
	{
		name: "the disk of Redis' master is full", failsOver: true, story: "the disk of the master has no free byte for 30 s: it refuses writes",
		do: func(s *stage) error { return s.master((*fleet.Node).FillDisk, long) },
	},
	{
		name: "disks of hosts are full", cut: true, story: "the disks of two agents have no free byte for 30 s",
		do: func(s *stage) error { return s.during(long, (*fleet.Node).FillDisk, "agent-4", "agent-9") },
	},
	{
		name: "agents lose their data folders", cut: true, story: "SIGKILL of two agents with all processes of their hosts; their data folders are removed, and they start as agents that were reinstalled",
		do: func(s *stage) error {
			return errors.Join(s.begin((*fleet.Node).Wipe, "agent-5", "agent-8"), s.hold(short/4), s.heal("agent-5", "agent-8"), s.hold(short))
		},
	},
	{
		name: "an agent is cloned", story: "an agent's folder is copied with its identity while it runs, and a second agent is started with the copy for 30 s: nothing is changed on the host while both live",
		do: func(s *stage) error {
			remove, err := s.Clone(s.ctx, s.Node("agent-6"))
			if err != nil {
				return err
			}
			return errors.Join(s.hold(long), remove())
		},
	},
	{
		name: "a broker loses its data folder", story: "SIGKILL of the NATS server that leads `PROCFLEET_OPS`; its streams are removed; it starts after 12 s and gets them from the others",
		do: func(s *stage) error { return s.leader("PROCFLEET_OPS", (*fleet.Node).Wipe, short) },
	},
	{
		name: "a replica of Redis loses its data folder", failsOver: true, story: "SIGKILL of a replica; its data is removed; it starts after 12 s and gets it from the master",
		do: func(s *stage) error { return s.replica((*fleet.Node).Wipe, short) },
	},
	{
		name: "of two replicas of Redis the wrong one is promoted", failsOver: true,
		story: "`--redis-wait-replicas 2`: one of two replicas is cut off from the master for 12 s; then the master is killed and the other replica frozen, so that the Sentinels promote the one that is behind",
		do:    (*stage).promoteTheWrongOne,
	},
}

// withHardships runs the scenarios that need other disks and clocks.
func withHardships(t *testing.T) (outcomes []*outcome) {
	t.Helper()
	if !anySelected(t, hardships, "") {
		return nil
	}
	with := buildImages(t, images.Builder{Clocks: true})
	t.Run("clocks and disks", func(t *testing.T) {
		f := fleet.Start(t, fleet.Config{
			Images: with, RedisReplicas: 2, WaitReplicas: 2, LightAgents: lightAgents, SmallDisks: true, Clocks: true,
		})
		for i, sc := range hardships {
			if selected(t, sc.name) {
				o := &outcome{name: sc.name, story: sc.story}
				outcomes = append(outcomes, o)
				o.play(t, f, fmt.Sprintf("h%d", i+1), sc.run)
			}
		}
	})
	return outcomes
}

// apart sets the clock of one node ahead, and that of another behind.
func (s *stage) apart(d time.Duration, ahead, behind string) error {
	return errors.Join(s.Node(ahead).SetClock(wrong), s.Node(behind).SetClock(-wrong), s.hold(d))
}

func (s *stage) promoteTheWrongOne() error {
	master, err := s.Master(s.ctx)
	if err != nil {
		return err
	}
	replicas := s.besides(master, fleet.Redis)
	behind, good := replicas[0], replicas[1]
	if err := errors.Join(behind.Wall(master), s.hold(short), good.Pause(), master.Kill(), behind.Mend()); err != nil {
		return err
	}
	return s.hold(long)
}
