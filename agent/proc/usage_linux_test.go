package proc

import (
	"syscall"
	"testing"
	"testing/fstest"
)

func TestUsageOfABusyTree(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=3")
	busy := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "busy")
	var m UsageMeter
	eventually(t, "a busy process uses CPU, its workers belong to the tree of the other", func() bool {
		u, err := m.Measure([]Identity{h.id, busy.id}, unclaimed)
		if err != nil {
			t.Fatal(err)
		}
		tree, spin := u.Trees[h.id], u.Trees[busy.id]
		if u.Processes < 5 || u.Capacity.CPUs <= 0 || u.Capacity.Memory <= 0 || tree.MemoryPercent <= 0 {
			t.Fatalf("usage is %+v", u)
		}
		return spin.CPUKnown && spin.CPU > 0 && len(tree.Processes) == 4 && tree.Processes[0] == h.id
	})
	if err := Signal(h.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a tree without its root is not measured", func() bool {
		u, err := m.Measure([]Identity{h.id}, unclaimed)
		return err == nil && len(u.Trees) == 0
	})
}

func TestRealMemoryOfATreeIsAtMostTheSum(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=3")
	var m UsageMeter
	eventually(t, "shared pages are counted once", func() bool {
		u, err := m.Measure([]Identity{h.id}, unclaimed)
		if err != nil {
			t.Fatal(err)
		}
		tree := u.Trees[h.id]
		pss, err := TreePSS(tree.Processes)
		if err != nil {
			t.Fatal(err)
		}
		return len(tree.Processes) == 4 && pss > 0 && pss < tree.RSS
	})
	if err := Signal(h.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is gone", func() bool { return !Alive(h.id) })
	if pss, err := TreePSS([]Identity{h.id}); pss != 0 || err != nil {
		t.Fatalf("a process that is gone uses %d bytes, error %v", pss, err)
	}
}

func TestSignalReachesTheWholeTree(t *testing.T) {
	t.Parallel()
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "workers=3")
	eventually(t, "all workers are there", func() bool { return len(treeOf(t, h.id)) == 4 })
	if _, err := SignalTree(h.id, KillScope{Protected: func(pid int) bool { return pid == h.id.PID }}, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if len(treeOf(t, h.id)) != 4 {
		t.Fatal("a protected tree was signalled")
	}
	reached, err := SignalTree(h.id, KillScope{}, syscall.SIGTERM)
	if err != nil || len(reached) != 4 {
		t.Fatalf("%d processes were signalled, error %v", len(reached), err)
	}
	eventually(t, "all are gone", func() bool {
		for _, p := range reached {
			if Alive(p.Identity) {
				return false
			}
		}
		return true
	})
	if _, err := SignalTree(Identity{BootID: h.id.BootID, PID: 1, Start: 1}, KillScope{}, syscall.SIGTERM); err == nil {
		t.Fatal("the tree of pid 1 may be signalled")
	}
}

func TestCapacityWithinControlGroups(t *testing.T) {
	t.Parallel()
	const (
		v2Mount = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
		v1Mount = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		none = "9223372036854771712"
	)
	host := Capacity{CPUs: 16, Memory: 64 << 30}
	for name, tc := range map[string]struct {
		files map[string]string
		want  Capacity
	}{
		"no control groups": {nil, host},
		"version 2, a group above limits": {map[string]string{
			"proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/app/agent\n",
			"sys/fs/cgroup/app/agent/cpu.max": "max 100000\n", "sys/fs/cgroup/app/agent/memory.max": "max\n",
			"sys/fs/cgroup/app/cpu.max": "150000 100000\n", "sys/fs/cgroup/app/memory.max": "1073741824\n",
		}, Capacity{CPUs: 1.5, Memory: 1 << 30}},
		"version 2, in a container": {map[string]string{
			"proc/self/mountinfo": "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "proc/self/cgroup": "0::/docker/abc\n",
			"sys/fs/cgroup/cpu.max": "200000 100000\n", "sys/fs/cgroup/memory.max": "2147483648\n",
		}, Capacity{CPUs: 2, Memory: 2 << 30}},
		"version 1": {map[string]string{
			"proc/self/mountinfo": v1Mount, "proc/self/cgroup": "8:memory:/a/b\n4:cpu,cpuacct:/\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": none,
		}, Capacity{CPUs: 0.5, Memory: 1 << 30}},
		"version 1 without limits": {map[string]string{
			"proc/self/mountinfo": v1Mount, "proc/self/cgroup": "8:memory:/\n4:cpu,cpuacct:/\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": none,
		}, host},
		"the path of the host is not mounted": {map[string]string{
			"proc/self/mountinfo": v2Mount, "proc/self/cgroup": "0::/../../elsewhere\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, Capacity{CPUs: 16, Memory: 1 << 30}},
		"nonsense": {map[string]string{
			"proc/self/mountinfo": v2Mount + "x\n", "proc/self/cgroup": "0::/\nx\n", "sys/fs/cgroup/memory.max": "many\n", "sys/fs/cgroup/cpu.max": "-1 0\n",
		}, host},
	} {
		files := fstest.MapFS{}
		for path, text := range tc.files {
			files[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := host.within(files); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
	here, err := ReadCapacity()
	if err != nil || here.CPUs <= 0 || here.Memory <= 0 {
		t.Fatalf("capacity of this host is %+v, error %v", here, err)
	}
}
