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

// site is a plant whose programs leave processes of their own behind. All of
// those work in its folder, by which they are found when it is closed.
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
	p.env = []string{openGate}
	return &site{plant: p, account: me.Username}, nil
}

// openGate lets agents start as many of the killed processes again as they have
// room for: their gate for restart storms, 20 a minute, would be all there is to
// see.
const openGate = "PROCFLEET_AGENT_TIMING=start_every=1ms"

// close stops the programs, then what they left behind.
func (s *site) close() error {
	err := s.plant.close()
	return errors.Join(err, killIn(s.dir))
}

// killIn ends every process that works in a folder or below; the folder may be
// gone already. A command that is just starting one is ended before or after it
// has, so it looks until there is none.
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
	return fmt.Errorf("processes in %s do not end, or others take their place", dir)
}

// worksIn are the pids of those processes.
func worksIn(dir string) ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue // it has ended, or is another's
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

// sleeper is an idle process that is supervised.
type sleeper struct {
	key, dir string
	command  string // that starts it
}

// What sleepers are. They end by themselves, should nobody have ended them.
const (
	sleeperName = "sleep"
	sleeperLife = "3600" // seconds
)

// sleepers makes the folders of n processes.
func (s *site) sleepers(group string, n int) ([]sleeper, error) {
	all := make([]sleeper, n)
	for i := range all {
		dir := filepath.Join(s.dir, group, strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // whoever the account is works there
			return nil, err
		}
		all[i] = sleeper{key: fmt.Sprintf("%s:%d", group, i), dir: dir}
		all[i].command = fmt.Sprintf("cd %s; %s %s >/dev/null 2>&1 </dev/null & echo $! > %s", dir, sleeperName, sleeperLife, all[i].pidFile())
	}
	return all, nil
}

func (p sleeper) pidFile() string { return filepath.Join(p.dir, "pid") }

// pid of the process that was started last; 0 if it is not known.
func (p sleeper) pid() int {
	text, err := os.ReadFile(p.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !strings.HasSuffix(string(text), "\n") { // it is being written
		return 0
	}
	return pid
}

// Rhythm of the processes that are measured.
const (
	startCheck    = time.Second // how long a start is watched
	startInterval = time.Second
)

// spec is what agents are told of the process.
func (p sleeper) spec(account string) agentproto.Spec {
	return agentproto.Spec{
		Key: p.key, ProcName: sleeperName, SetupPath: p.dir, PidPath: p.pidFile(), Account: account, NoProfile: true, Type: "resident",
		StartCmd: p.command, ReloadCmd: reloadCommand, Instances: 1,
		OpTimeoutMS: 60_000, StartCheckBeginMS: startCheck.Milliseconds(), StartCheckEndMS: startCheck.Milliseconds(), StopCheckMS: 5_000,
		StartRetries: 10, StartIntervalMS: startInterval.Milliseconds(),
	}
}

// reloadCommand is the least that a reload can do.
const reloadCommand = "true"
