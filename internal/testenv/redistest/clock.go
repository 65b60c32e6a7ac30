package redistest

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clockSource makes the wall clock of a process movable: what it reads from
// the file REDISTEST_CLOCK, in microseconds, is added to gettimeofday, from
// which redis-server has all its wall clock time.
const clockSource = `
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead;

__attribute__((constructor)) static void open_clock(void) {
	const char *name = getenv("REDISTEST_CLOCK");
	int fd = name ? open(name, O_RDONLY) : -1;
	if (fd < 0) return;
	void *page = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	if (page != MAP_FAILED) ahead = page;
	close(fd);
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	struct timespec ts;
	(void)tz;
	if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
	long long us = ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 + (ahead ? *ahead : 0);
	tv->tv_sec = us / 1000000;
	tv->tv_usec = us % 1000000;
	return 0;
}
`

// Clock makes servers whose clock can be moved. It works on Linux, with a C
// compiler, which the race detector needs too.
type Clock struct{ library string }

// BuildClock builds the clock; one is enough for all servers of a test.
func BuildClock(tb testing.TB) Clock {
	tb.Helper()
	dir := tb.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, []byte(clockSource), 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("build a movable clock with the C compiler: %v\n%s", err, out)
	}
	return Clock{library: library}
}

// Library is the file to preload (LD_PRELOAD) into another redis-server, with
// REDISTEST_CLOCK naming a file of 8 bytes: how many microseconds its clock is
// ahead, in the byte order of the machine.
func (c Clock) Library() string { return c.library }

// Start is [Start] with a clock for [Server.Advance].
func (c Clock) Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "clock")
	if err := os.WriteFile(file, make([]byte, 8), 0o600); err != nil {
		tb.Fatal(err)
	}
	s := &Server{args: durable(args), clock: file, env: []string{"LD_PRELOAD=" + c.library, "REDISTEST_CLOCK=" + file}}
	s.begin(tb)
	return s
}

// Advance moves the clock of a server that a [Clock] started, also backwards.
func (s *Server) Advance(tb testing.TB, d time.Duration) {
	tb.Helper()
	s.ahead += d
	f, err := os.OpenFile(s.clock, os.O_WRONLY, 0)
	if err != nil {
		tb.Fatalf("move the clock of redis-server: %v", err)
	}
	defer f.Close()
	// In place: the server has this file mapped.
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(s.ahead.Microseconds())), 0); err != nil {
		tb.Fatalf("move the clock of redis-server: %v", err)
	}
}
