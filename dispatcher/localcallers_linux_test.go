package dispatcher

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/procfleet/procfleet/internal/testenv"
)

const nobodyUID = 65534

// dialAs opens a TCP connection from a socket of another account. Only this thread has the account, while
// it creates the socket.
func dialAs(ctx context.Context, uid int, address string) (net.Conn, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(uid); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err := unix.Setfsuid(os.Geteuid()); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	to, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
		return nil, err
	}
	return net.FileConn(file)
}

// tryAs makes one request as an account.
func (d *testServer) tryAs(uid int, method, path, body string) answer {
	d.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return dialAs(ctx, uid, address)
	}}}
	a, err := d.tryWith(&client, method, path, body, nil)
	if err != nil {
		d.t.Fatalf("%s %s: %v in %q", method, path, err, a.text)
	}
	return a
}

// TestOtherAccountsOfThisMachineMayNotCall: on loopback without applications
// the account that runs the dispatcher and root may call, and no other.
func TestOtherAccountsOfThisMachineMayNotCall(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	front, _, _ := run(t, testConfig(t), &fakeQueue{})
	for path, refused := range map[string]func(answer) bool{
		v2Path: esbCode(1306403), multiPath: esbCode(1306403), backendPath: esbCode(1306403),
		gatewayPath:               func(a answer) bool { return a.status == http.StatusForbidden && a.body["code"] == 1640301.0 },
		jobPath:                   esbCode(9900403),
		"/api/v3/proc/search/0/1": func(a answer) bool { return a.status == http.StatusForbidden && a.body["bk_error_code"] == 9900403.0 },
		nativePath:                nativeCode(http.StatusForbidden, "forbidden"),
		"/v1/hosts":               nativeCode(http.StatusForbidden, "forbidden"),
		"/v1/tasks/GSETASK:1:2":   nativeCode(http.StatusForbidden, "forbidden"),
	} {
		method, body := http.MethodPost, gseBody(2, "10.0.0.1")
		if strings.HasPrefix(path, "/v1/hosts") || strings.HasPrefix(path, "/v1/tasks/") {
			method, body = http.MethodGet, ""
		}
		if path == nativePath {
			body = nativeBody("0:10.0.0.1")
		}
		a := front.tryAs(nobodyUID, method, path, body)
		if !refused(a) || !strings.Contains(a.text, "procfleet app add") || !strings.Contains(a.text, "--allow-local-users") || !strings.Contains(a.text, "uid 65534") {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/docs"} {
		if a := front.tryAs(nobodyUID, http.MethodGet, path, ""); a.status != http.StatusOK {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	if n := front.tasks(); n != 0 {
		t.Errorf("%d tasks", n)
	}
	if a := front.tryAs(0, http.MethodPost, nativePath, nativeBody("0:10.0.0.1")); a.status != http.StatusCreated {
		t.Errorf("root: %d %s", a.status, a.text)
	}
}

func TestOtherAccountsMayCallWhereTheyAreAllowed(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for name, allow := range map[string]func(*Config){
		"allow-local-users":     func(c *Config) { c.AllowLocalUsers = true },
		"allow-unauthenticated": func(c *Config) { c.AllowUnauthenticated = true },
	} {
		cfg := testConfig(t)
		allow(&cfg)
		front, _, _ := run(t, cfg, &fakeQueue{})
		if a := front.tryAs(nobodyUID, http.MethodPost, nativePath, nativeBody("0:10.0.0.1")); a.status != http.StatusCreated {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
}

// A caller that closes its connection at once must not be authenticated as root: the kernel reports
// root as the owner of a socket that no process has open.
func TestWhoClosesAtOnceIsNotTakenForRoot(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	front, _, _ := run(t, testConfig(t), &fakeQueue{})
	address, body := strings.TrimPrefix(front.url, "http://"), nativeBody("0:10.0.0.1")
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", nativePath, len(body), body)
	for n := range 100 {
		conn, err := dialAs(t.Context(), nobodyUID, address)
		if err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			err = conn.(*net.TCPConn).SetLinger(0) // it is reset
		}
		if _, written := conn.Write([]byte(request)); written != nil || err != nil {
			t.Fatal(err, written)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Connections are accepted in order: when this request succeeds, all others are accepted.
	if a := front.tryAs(0, http.MethodGet, "/v1/tasks", ""); a.status != http.StatusOK {
		t.Fatalf("root: %d %s", a.status, a.text)
	}
	if n := front.tasks(); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

func TestAUnixSocketIsServedBesideTheAddress(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	path := filepath.Join(t.TempDir(), "s")
	var err error
	if cfg.Socket, err = new(net.ListenConfig).Listen(t.Context(), "unix", path); err != nil {
		t.Fatal(err)
	}
	front, _, _ := run(t, cfg, &fakeQueue{})
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	a, err := front.tryWith(&client, http.MethodPost, nativePath, nativeBody("0:10.0.0.1"), nil)
	if err != nil || a.status != http.StatusCreated {
		t.Errorf("over the socket: %d %s %v", a.status, a.text, err)
	}
	if a := front.call(http.MethodPost, nativePath, nativeBody("0:10.0.0.1")); a.status != http.StatusCreated {
		t.Errorf("over TCP: %d %s", a.status, a.text)
	}
}
