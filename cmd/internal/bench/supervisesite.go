package bench

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/procfleet/procfleet/agentproto"
)

// site is a plant whose supervised processes outlive their supervisors. close finds these
// processes by their working directories, which are in the site's directory.
type site struct {
	*plant
	account string
}

func newSite(procfleet string) (*site, error) {
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	p, err := newPlant(procfleet)
	if err != nil {
		return nil, err
	}
	if p.dir, err = filepath.EvalSymlinks(p.dir); err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.env = []string{noRestartLimit}
	return &site{plant: p, account: me.Username}, nil
}

// noRestartLimit is an environment setting that disables the restart storm limit of agents.
// The default limit, 20 restarts per minute, would dominate the measurement.
const noRestartLimit = "PROCFLEET_AGENT_TIMING=start_every=1ms"

// close kills the remaining supervised processes after it stops the supervisors.
func (s *site) close() error {
	err := s.plant.close()
	return errors.Join(err, killIn(s.dir))
}

// killIn kills every process with a working directory in dir, even if dir was removed. It
// repeats until no such process exists, because a process may start another one before it
// is killed.
func killIn(dir string) error {
	const rounds = 100
	for range rounds {
		pids, err := worksIn(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := kill(pid); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("processes in %s do not end, or are replaced by others", dir)
}

// worksIn returns the pids of processes with a working directory in dir.
func worksIn(dir string) ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue // the process has ended or belongs to another user
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// sleeper is a supervised idle process.
type sleeper struct {
	key, dir string
	command  string // start command
}

// Program and argument of sleepers. A sleeper that close fails to kill ends after
// sleeperLife.
const (
	sleeperName = "sleep"
	sleeperLife = "3600" // lifetime in seconds
)

// sleepers returns n processes and creates their working directories.
func (s *site) sleepers(group string, n int) ([]sleeper, error) {
	all := make([]sleeper, n)
	for i := range all {
		dir := filepath.Join(s.dir, group, strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // any account works there
			return nil, err
		}
		all[i] = sleeper{key: fmt.Sprintf("%s:%d", group, i), dir: dir}
		all[i].command = fmt.Sprintf("cd %s; %s %s >/dev/null 2>&1 </dev/null & echo $! > %s", dir, sleeperName, sleeperLife, all[i].pidFile())
	}
	return all, nil
}

func (p sleeper) pidFile() string { return filepath.Join(p.dir, "pid") }

// pid returns the pid that the last start of the sleeper wrote, or 0 if unknown.
func (p sleeper) pid() int {
	text, err := os.ReadFile(p.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !strings.HasSuffix(string(text), "\n") { // the pid is not completely written
		return 0
	}
	return pid
}

// Start settings of the measured processes.
const (
	startCheck    = time.Second // duration of the check after a start
	startInterval = time.Second
)

// spec returns the process spec for agents.
func (p sleeper) spec(account string) agentproto.Spec {
	return agentproto.Spec{
		Key: p.key, ProcName: sleeperName, SetupPath: p.dir, PidPath: p.pidFile(), Account: account, NoProfile: true, Type: "resident",
		StartCmd: p.command, ReloadCmd: reloadCommand, Instances: 1,
		OpTimeoutMS: 60_000, StartCheckBeginMS: startCheck.Milliseconds(), StartCheckEndMS: startCheck.Milliseconds(), StopCheckMS: 5_000,
		StartRetries: 10, StartIntervalMS: startInterval.Milliseconds(),
	}
}

// reloadCommand is a reload command without effect.
const reloadCommand = "true"
