package agent

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/internal/testenv"
)

// writeOtherJournal leaves a journal of another format in a data folder.
func writeOtherJournal(t *testing.T, data string) {
	t.Helper()
	dir := filepath.Join(data, "journal")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"n":1,"head":{"format":99,"generation":1}}`)
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	frame = binary.LittleEndian.AppendUint32(frame, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	if err := os.WriteFile(filepath.Join(dir, "log-000001"), append(frame, body...), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestConfigNamesEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	err := Config{Cloud: -1, AgentID: strings.Repeat("x", maxAgentID+1)}.WithDefaults().Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"Config.Conn", "Config.Cloud", "Config.Addr", "Config.AgentID", "Config.DataDir", "Config.Log"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error does not name %s: %v", part, err)
		}
	}
	good := Config{Conn: &nats.Conn{}, Addr: netip.MustParseAddr("::ffff:10.0.0.1"), DataDir: "x", Log: testenv.Silent()}.WithDefaults()
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	if good.host() != "0:10.0.0.1" {
		t.Errorf("host %q", good.host())
	}
	for _, ip := range []string{"0.0.0.0", "224.0.0.1", "fe80::1%eth0"} {
		bad := good
		bad.Addr = netip.MustParseAddr(ip)
		if bad.Validate() == nil {
			t.Errorf("%s is accepted as a host", ip)
		}
	}
}

func TestDataFolderBelongsToOneAgent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	first, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(dir); err == nil || !strings.Contains(err.Error(), "in use by another procfleet agent (pid ") {
		t.Errorf("second agent: %v", err)
	}
	writeOtherJournal(t, dir)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFolder(t, again) })
	if again.instance != first.instance {
		t.Error("the instance id did not stay")
	}
	other, err := openFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFolder(t, other) })
	if other.instance == first.instance {
		t.Error("two folders have the same instance id")
	}
}

func closeFolder(t *testing.T, f *folder) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestInstanceIDDoesNotOutliveTheJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := map[string]bool{}
	for _, emptied := range []bool{false, false, true} { // false: the journal folder was moved away
		if emptied {
			if err := os.Mkdir(filepath.Join(dir, "journal"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		f, err := openFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		seen[f.instance] = true
		closeFolder(t, f)
	}
	if len(seen) != 3 {
		t.Errorf("an agent that remembers nothing keeps its instance id: %v", seen)
	}
}

func there(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestABindingIsOfOneMachine(t *testing.T) {
	t.Parallel()
	here := binding{Instance: "i", MachineID: "m1", BootID: "b1", Inode: 7}
	for _, c := range []struct {
		name    string
		now     binding
		foreign bool
	}{
		{"the same", here, false},
		{"after a boot", binding{MachineID: "m1", BootID: "b2", Inode: 7}, false},
		{"another image in the same boot", binding{MachineID: "m2", BootID: "b1", Inode: 7}, false},
		{"a machine that does not say which it is", binding{BootID: "b2", Inode: 7}, false},
		{"a system without inodes", binding{MachineID: "m1", BootID: "b2"}, false},
		{"another machine", binding{MachineID: "m2", BootID: "b2", Inode: 7}, true},
		{"another machine, which does not say its boot", binding{MachineID: "m2", Inode: 7}, true},
		{"a copy in the same boot", binding{MachineID: "m1", BootID: "b1", Inode: 8}, true},
		{"a backup", binding{MachineID: "m1", BootID: "b2", Inode: 8}, true},
	} {
		if why := here.foreign(&c.now); (why != "") != c.foreign {
			t.Errorf("%s: %q", c.name, why)
		}
	}
}

func TestSpoiledInstanceIDIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeOtherJournal(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "instance"), []byte("not an id\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openFolder(dir); err == nil || !strings.Contains(err.Error(), "contains no instance id") {
		t.Errorf("got %v", err)
	}
}

func TestClockJudgesByTheServersTime(t *testing.T) {
	t.Parallel()
	now := reading{wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), monotonic: time.Hour}
	c := &clock{known: make(chan struct{}), read: func() reading { return now }}
	if c.surelyBefore(now.wall.Add(time.Hour)) || !c.behind(now.wall) {
		t.Error("the local clock is trusted though the server's time is not known")
	}
	const ahead = time.Hour // of the server
	c.observe(exchange{now.ago(200 * time.Millisecond), now}, now.wall.Add(ahead-100*time.Millisecond))
	if got := c.offset(); got != ahead {
		t.Errorf("offset %v", got)
	}
	// The round trip causes an uncertainty of 100 ms.
	server := now.wall.Add(ahead)
	if !c.surelyBefore(server.Add(150 * time.Millisecond)) {
		t.Error("surely in time, refused")
	}
	if c.surelyBefore(server.Add(50 * time.Millisecond)) {
		t.Error("perhaps late, accepted")
	}
	// A slower measurement does not replace a faster one with a consistent time.
	c.observe(exchange{now.ago(4 * time.Second), now}, server.Add(-3*time.Second))
	if got := c.offset(); got != ahead {
		t.Errorf("offset after a slow answer %v", got)
	}
	// A contradicting one does: both local clocks were stopped for a while.
	c.observe(exchange{now.ago(4 * time.Second), now}, server.Add(time.Minute))
	if got := c.offset(); got != ahead+62*time.Second {
		t.Errorf("offset after a suspension %v", got)
	}
	c.observe(exchange{now.ago(200 * time.Millisecond), now}, server.Add(-100*time.Millisecond))
	// After the wall clock was set, any measurement replaces the earlier one.
	now.wall = now.wall.Add(time.Minute)
	c.observe(exchange{now.ago(4 * time.Second), now}, server.Add(-2*time.Second))
	if got := c.offset(); got != ahead-time.Minute {
		t.Errorf("offset after the clock was set %v", got)
	}
}

func (r reading) ago(d time.Duration) reading {
	return reading{wall: r.wall.Add(-d), monotonic: r.monotonic - d}
}

func TestClockCountsTimeThatEitherLocalClockMissed(t *testing.T) {
	t.Parallel()
	start := reading{wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), monotonic: time.Hour}
	for what, now := range map[string]reading{
		"a paused machine":      {wall: start.wall.Add(time.Minute), monotonic: start.monotonic},
		"a clock set back":      {wall: start.wall.Add(-time.Hour), monotonic: start.monotonic + time.Minute},
		"time that just passes": {wall: start.wall.Add(time.Minute), monotonic: start.monotonic + time.Minute},
	} {
		c := &clock{known: make(chan struct{}), read: func() reading { return now }}
		c.observe(exchange{start, start}, start.wall)
		if c.surelyBefore(start.wall.Add(59 * time.Second)) {
			t.Errorf("%s: a command that expired a second ago was accepted", what)
		}
		if !c.surelyBefore(start.wall.Add(61 * time.Second)) {
			t.Errorf("%s: a command that is valid for a second was refused", what)
		}
	}
}

func TestDeletedDataFolderIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	f, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFolder(t, f) })
	if again, err := f.restore(); again || err != nil {
		t.Fatalf("nothing was missing: %v %v", again, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := f.restore(); !again || err != nil {
		t.Fatalf("restored %v, %v", again, err)
	}
	if _, err := openFolder(dir); err == nil || !strings.Contains(err.Error(), "in use by another procfleet agent (pid ") {
		t.Errorf("a second agent: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "instance"))
	if err != nil || strings.TrimSpace(string(text)) != f.instance {
		t.Errorf("instance %q (%v), want %s", text, err, f.instance)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	other, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFolder(t, other) })
	if _, err := f.restore(); !errors.Is(err, errInUse) {
		t.Errorf("the folder of another agent is taken over: %v", err)
	}
}
