package redistest

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clockSource is the C source of a library that moves the wall clock of a process. It
// overrides gettimeofday, from which redis-server reads its wall clock, and adds the number
// of microseconds in the file REDISTEST_CLOCK.
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

// Clock starts servers whose clock can be moved. It requires Linux and a C compiler.
type Clock struct{ library string }

// BuildClock builds a clock, which can be used for several servers.
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

// Library returns the path of a library for LD_PRELOAD, for a redis-server that the test
// starts itself. The environment variable REDISTEST_CLOCK must contain the path of a file
// of 8 bytes: the number of microseconds that the clock is ahead, in native byte order.
func (c Clock) Library() string { return c.library }

// Start is [Start] for a server whose clock [Server.Advance] can move.
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

// Advance moves the clock of a server that a [Clock] started by d, backwards if d is
// negative.
func (s *Server) Advance(tb testing.TB, d time.Duration) {
	tb.Helper()
	s.ahead += d
	f, err := os.OpenFile(s.clock, os.O_WRONLY, 0)
	if err != nil {
		tb.Fatalf("move the clock of redis-server: %v", err)
	}
	defer f.Close()
	// Write in place, because the server has mapped this file into memory.
	if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(s.ahead.Microseconds())), 0); err != nil {
		tb.Fatalf("move the clock of redis-server: %v", err)
	}
}
