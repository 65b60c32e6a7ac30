package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// ReadCapacity returns the CPUs and the memory that the agent and its processes may use
// together.
func ReadCapacity() (Capacity, error) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Capacity{}, fmt.Errorf("read the memory size: %w", err)
	}
	host := Capacity{CPUs: float64(onlineCPUs()), Memory: lineValue(meminfo, "MemTotal:") << 10}
	return host.within(os.DirFS("/")), nil
}

// within returns c reduced to the limits of the agent's control groups. Limits that cannot
// be read are ignored: outside of containers the files do not exist.
func (c Capacity) within(root fs.FS) Capacity {
	for _, dir := range controlDirs(root, "cpu") {
		if cpus := cpuQuota(root, dir); cpus > 0 {
			c.CPUs = min(c.CPUs, cpus)
		}
	}
	for _, dir := range controlDirs(root, "memory") {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			if bytes, err := number(root, path.Join(dir, name)); err == nil && bytes > 0 {
				c.Memory = min(c.Memory, bytes)
			}
		}
	}
	return c
}

// cpuQuota returns the limit of a control group in CPUs; 0 = no limit.
func cpuQuota(root fs.FS, dir string) float64 {
	var quota, period int64
	if text, err := fs.ReadFile(root, path.Join(dir, "cpu.max")); err == nil {
		if n, err := fmt.Sscan(string(text), &quota, &period); n != 2 || err != nil { // "max 100000"
			return 0
		}
	} else {
		var err1, err2 error
		quota, err1 = number(root, path.Join(dir, "cpu.cfs_quota_us"))
		period, err2 = number(root, path.Join(dir, "cpu.cfs_period_us"))
		if errors.Join(err1, err2) != nil {
			return 0
		}
	}
	if quota <= 0 || period <= 0 {
		return 0
	}
	return float64(quota) / float64(period)
}

func number(root fs.FS, name string) (int64, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
}

// controlDirs returns the directories of the agent's control group and its ancestors, relative
// to root: in the cgroup v2 hierarchy and, if mounted, in the v1 hierarchy of the controller.
func controlDirs(root fs.FS, controller string) []string {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(string(groups)) { // "4:cpu,cpuacct:/path" or "0::/path"
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] != "" && !slices.Contains(strings.Split(parts[1], ","), controller) {
			continue
		}
		wanted := controller
		if parts[1] == "" {
			wanted = ""
		}
		if top, inside := controlMount(string(mounts), wanted); top != "" {
			dirs = append(dirs, upwards(top, within(inside, parts[2]))...)
		}
	}
	return dirs
}

// controlMount returns the mount point of a cgroup hierarchy, relative to /, and the path
// inside the hierarchy that is mounted there. An empty controller means cgroup v2.
func controlMount(mounts, controller string) (top, inside string) {
	for line := range strings.Lines(mounts) {
		// "35 31 0:32 /inside /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
		before, after, _ := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if len(place) < 5 || len(kind) < 3 {
			continue
		}
		v2 := controller == "" && kind[0] == "cgroup2"
		v1 := controller != "" && kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), controller)
		if v1 || v2 {
			return strings.TrimPrefix(place[4], "/"), place[3]
		}
	}
	return "", ""
}

// within returns the path of a control group relative to inside, the mounted part of its
// hierarchy; "/" if the group is outside. In a container often only the container's part is
// mounted, while /proc/self/cgroup shows the path on the host.
func within(inside, group string) string {
	rest, ok := strings.CutPrefix(group, strings.TrimSuffix(inside, "/"))
	if !ok {
		return "/"
	}
	return path.Clean("/" + rest)
}

// upwards returns the directories of a control group and its ancestors up to top, the mount
// point.
func upwards(top, group string) []string {
	dirs := []string{top}
	for ; group != "/"; group = path.Dir(group) {
		dirs = append(dirs, path.Join(top, group))
	}
	return dirs
}
