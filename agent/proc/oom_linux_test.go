package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

func TestOOMRecords(t *testing.T) {
	t.Parallel()
	for record, want := range map[string]int{
		"3,416,1683479488,-;Memory cgroup out of memory: Killed process 27026 (tail) total-vm:51480kB, anon-rss:48640kB": 27026,
		"3,9,5,-,caller=T1;Out of memory: Killed process 42 (a b) total-vm:1kB":                                          42,
		"6,416,1683479488,-;[  27026]     0 27026    12870    12574 tail":                                                0,
		"4,1,2,-;Out of memory: Killed process x (y)":                                                                    0,
		"Out of memory: Killed process 7 (y)":                                                                            0,
		"":                                                                                                               0,
	} {
		pid, at, ok := oomKill([]byte(record))
		if ok != (want != 0) || ok && pid != want {
			t.Errorf("%q is pid %d, %t; want %d", record, pid, ok, want)
		}
		if want == 27026 && at != 1683479488*time.Microsecond {
			t.Errorf("time is %v", at)
		}
	}
}

func TestOOMCounters(t *testing.T) {
	t.Parallel()
	root := fstest.MapFS{
		"a/memory.events":      {Data: []byte("low 0\noom 3\noom_kill 2\noom_group_kill 7\n")},
		"b/memory.oom_control": {Data: []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")},
	}
	if got := oomCount(root, []string{"a/memory.events", "a/memory.oom_control", "b/memory.oom_control"}); got != 7 {
		t.Fatalf("count is %d, want 7", got)
	}
}

func TestKernelsLogNamesWhomItKilledForMemory(t *testing.T) {
	t.Parallel()
	l := NewOOMLog()
	defer l.Close()
	if l.kmsg < 0 {
		testenv.Missing(t, "kmsg", "the kernel's log cannot be read here")
	}
	group := memoryGroup(t, 16<<20)
	h := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "glutton="+filepath.Base(group))
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, h.id.PID), 0o600); err != nil {
		t.Fatal(err)
	}
	other := spawn(t, program(t, t.TempDir(), "app"), t.TempDir(), "sleep")
	eventually(t, "the kernel ends it", func() bool { return !Alive(h.id) })
	eventually(t, "the log says so", func() bool { return l.Killed(h.id) })
	if err := Signal(other.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other is gone", func() bool { return !Alive(other.id) })
	if l.Killed(other.id) {
		t.Error("a process that was killed by hand is said to have been out of memory")
	}
	later := h.id
	later.Start += 100 * TicksPerSecond
	if l.Killed(later) {
		t.Error("a later process of the same pid is said to have been out of memory")
	}
}

// memoryGroup makes a control group with a limit, which ends with the test.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	name := fmt.Sprintf("procfleet-test-%d", os.Getpid())
	for dir, file := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		group := filepath.Join(dir, name)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			continue
		}
		t.Cleanup(func() {
			eventually(t, "its group is gone", func() bool {
				err := os.Remove(group)
				return err == nil || errors.Is(err, os.ErrNotExist)
			})
		})
		if os.WriteFile(filepath.Join(group, file), fmt.Append(nil, limit), 0o600) == nil {
			_ = os.WriteFile(filepath.Join(group, "memory.swap.max"), []byte("0"), 0o600)
			return group
		}
	}
	testenv.Missing(t, "cgroups", "no control group with a memory limit can be made here")
	return ""
}

// playGlutton uses all the memory it gets once it is in a control group.
func playGlutton(group string) {
	ready(os.Getpid())
	await(func() bool {
		in, err := os.ReadFile("/proc/self/cgroup")
		return err == nil && strings.Contains(string(in), "/"+group+"\n")
	})
	var all []string
	for {
		all = append(all, strings.Repeat("memory", 100_000))
		if len(all) > 300 {
			return
		}
	}
}
