//go:build linux

package check

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	defer testenv.CleanUp()
	m.Run()
}

// patience is the maximum time for everything that must happen, on a busy machine.
const patience = 60 * time.Second

// TestKilledSystemLosesNothing kills the whole system in one process
// several times under load. Every accepted task and result must survive.
func TestKilledSystemLosesNothing(t *testing.T) {
	t.Parallel()
	host, err := procfleet.NewHost(0, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	absent, err := procfleet.NewHost(0, "127.0.0.99")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	t.Cleanup(func() { endResidents(t, folder) })
	u := newUp(t)
	u.start()
	bus := testenv.ConnectAsServer(t, u.nats, u.data)
	load, err := Start(t.Context(), Config{
		Run: "up", Seed: 1, Most: 60, Pause: 20 * time.Millisecond,
		Dispatchers: []string{u.url}, Hosts: []procfleet.Host{host}, Absent: []procfleet.Host{absent},
		Folder: folder, Marks: func() ([]Mark, error) { return readMarks(host, folder) },
		Publish: Publisher(bus), Events: TaskEvents(bus), Callbacks: "127.0.0.1:0", Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer load.Stop()
	for _, ran := range []int{5, 15, 25} {
		testenv.Eventually(t, patience, func() bool {
			marks, err := readMarks(host, folder)
			return err == nil && len(marks) >= ran
		}, strconv.Itoa(ran)+" start commands ran")
		u.child.Kill()
		u.start()
	}
	found, err := load.Settle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(load.Totals())
	for _, v := range found {
		t.Error(v)
	}
}

// up is the whole system in one process, with its agent.
type up struct {
	t         *testing.T
	program   string
	args      []string
	url, nats string
	data      string
	child     *testenv.Child
}

func newUp(t *testing.T) *up {
	t.Helper()
	addr := testenv.FreeAddress(t)
	bus := testenv.FreeAddress(t)
	data := filepath.Join(t.TempDir(), "data")
	return &up{
		t: t, data: data, program: testenv.BuildBinary(t, "./cmd/procfleet"), url: "http://" + addr, nats: "nats://" + bus,
		args: []string{"up", "--http", addr, "--nats-listen", bus, "--callback-allow", "127.0.0.1", "--data", data},
	}
}

func (u *up) start() {
	u.t.Helper()
	u.child = testenv.StartChild(u.t, nil, u.program, u.args...)
	u.child.WaitHTTP(u.t, patience, u.url+"/readyz")
}

// readMarks reads the marks of this host.
func readMarks(host procfleet.Host, folder string) ([]Mark, error) {
	data, err := os.ReadFile(filepath.Join(folder, MarkFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var marks []Mark
	for line := range strings.Lines(string(data)) {
		m, err := ParseMark(host, strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		marks = append(marks, m)
	}
	return marks, nil
}

// endResidents ends the resident processes of the load.
func endResidents(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.pid"))
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			continue // the pid file is not complete yet
		}
		if comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err == nil && string(comm) == "sleep\n" {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the process may have ended
		}
	}
}
