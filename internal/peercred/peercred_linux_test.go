package peercred_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/internal/peercred"
	"github.com/procfleet/procfleet/internal/testenv"
)

const nobody = 65534

// accepted is one connection: the client's socket, and the server's end.
type accepted struct {
	client int
	server net.Conn
}

// connect opens a connection from a socket of the given family that uid made.
func connect(t *testing.T, listener net.Listener, family, uid int) accepted {
	t.Helper()
	port := listener.Addr().(*net.TCPAddr).Port
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	switch listens := listener.Addr().(*net.TCPAddr).IP; {
	case family == unix.AF_INET6 && listens.To4() != nil:
		to = &unix.SockaddrInet6{Port: port, Addr: [16]byte(net.ParseIP("127.0.0.1").To16())}
	case family == unix.AF_INET6:
		to = &unix.SockaddrInet6{Port: port, Addr: [16]byte(net.IPv6loopback)}
	}
	fd := socketOf(t, family, uid)
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing depends on it
	return accepted{fd, conn}
}

// socketOf creates a socket that belongs to another account. Only this thread has the account, while it
// creates the socket.
func socketOf(t *testing.T, family, uid int) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if uid != os.Geteuid() {
		testenv.NeedRoot(t)
		if err := unix.Setfsuid(uid); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(os.Geteuid()) }() // a thread that stays is locked, and ends
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Skipf("no %s here: %v", address, err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nothing depends on it
	return listener
}

func TestTheOwnerOfATCPConnectionIsKnown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, address string
		family        int
	}{
		{"IPv4", "127.0.0.1:0", unix.AF_INET},
		{"IPv6", "[::1]:0", unix.AF_INET6},
		{"IPv4 from a socket of IPv6", "127.0.0.1:0", unix.AF_INET6},
	} {
		for _, uid := range []int{os.Geteuid(), nobody} {
			t.Run(fmt.Sprintf("%s of %d", test.name, uid), func(t *testing.T) {
				t.Parallel()
				c := connect(t, listen(t, "tcp", test.address), test.family, uid)
				defer func() { _ = unix.Close(c.client) }()
				wraps := tls.Server(c.server, &tls.Config{})
				if got, err := peercred.UID(wraps); err != nil || int(got) != uid {
					t.Errorf("the owner is %d, %v; want %d", got, err, uid)
				}
				if err := unix.Shutdown(c.client, unix.SHUT_WR); err != nil {
					t.Fatal(err)
				}
				if got, err := peercred.UID(c.server); err != nil || int(got) != uid {
					t.Errorf("after it has sent everything the owner is %d, %v; want %d", got, err, uid)
				}
			})
		}
	}
}

// For a socket that no process has open the kernel reports uid 0, which is root. The lookup must not
// return it.
func TestAClosedEndBelongsToNobody(t *testing.T) {
	t.Parallel()
	listener := listen(t, "tcp", "127.0.0.1:0")
	for _, reset := range []bool{false, true} {
		c := connect(t, listener, unix.AF_INET, os.Geteuid())
		if reset {
			if err := unix.SetsockoptLinger(c.client, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Close(c.client); err != nil {
			t.Fatal(err)
		}
		if uid, err := peercred.UID(c.server); err == nil {
			t.Errorf("reset %v: the owner is %d, %v", reset, uid, err)
		}
	}
}

func TestTheOwnerOfAUnixConnectionIsKnown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	listener := listen(t, "unix", path)
	client, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if got, err := peercred.UID(server); err != nil || int(got) != os.Geteuid() {
		t.Errorf("the owner is %d, %v; want %d", got, err, os.Geteuid())
	}
}

func TestWhatIsNoSocketHasNoOwner(t *testing.T) {
	t.Parallel()
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	if uid, err := peercred.UID(one); err == nil {
		t.Errorf("the owner is %d, %v", uid, err)
	}
}

func BenchmarkUID(b *testing.B) {
	listener, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client, err := new(net.Dialer).DialContext(b.Context(), "tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	for b.Loop() {
		if _, err := peercred.UID(server); err != nil {
			b.Fatal(err)
		}
	}
}
