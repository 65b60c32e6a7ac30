//go:build linux

package transport

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// listeners are the listeners of one running system.
type listeners struct {
	child              *testenv.Child
	dispatcher, status string
}

// startListeners starts a system that requires applications.
func startListeners(t *testing.T, extra ...string) listeners {
	t.Helper()
	l := listeners{dispatcher: testenv.FreeAddress(t), status: testenv.FreeAddress(t)}
	apps := filepath.Join(t.TempDir(), "apps.yaml")
	if got := run(t, "app", "add", "esb", "--skip-user-auth", "--apps", apps); got.code != 0 {
		t.Fatalf("add an application: %+v", got)
	}
	l.child = testenv.StartChild(t, nil, program(t), append([]string{
		"up", "--agent=false", "--http", l.dispatcher, "--status-http", l.status, "--apps", apps,
		"--trusted-esb", "127.0.0.1", "--log-level", "debug", "--data", filepath.Join(t.TempDir(), "data"),
	}, extra...)...)
	l.child.WaitHTTP(t, patience, "http://"+l.dispatcher+"/readyz")
	return l
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// answers sends bytes and reads responses until the server closes the connection,
// which it must do.
func answers(t *testing.T, address, raw string) (statuses []int, all string) {
	t.Helper()
	conn := dial(t, address)
	go func() { _, _ = io.WriteString(conn, raw) }() // the server may close the connection before it has read everything
	text, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("connection still open after %.100q; response %.300q", raw, text)
	}
	reader := bufio.NewReader(strings.NewReader(string(text)))
	for {
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			return statuses, string(text)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // the rest of the body
		_ = resp.Body.Close()                 // the body is in memory
		statuses = append(statuses, resp.StatusCode)
	}
}

const head = "Host: 127.0.0.1\r\nConnection: close\r\n"

func get(path, headers string) string {
	return "GET " + path + " HTTP/1.1\r\n" + head + headers + "\r\n"
}

func post(path, headers, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s", path, head, headers, len(body), body)
}

// TestMalformedRequests sends malformed requests to each listener. Each
// gets an error, or the response to the equivalent correct request, and must not
// affect the next request. The listener must serve other clients meanwhile.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	l := startListeners(t)
	// After a rejected request the listener closes the connection, so that it does
	// not parse the following bytes as a request. If a request has both a length
	// and chunks, the listener reads the chunks.
	smuggled := "GET /healthz?smuggled HTTP/1.1\r\n" + head + "\r\n"
	long := strings.Repeat("a", 300<<10)
	for name, c := range map[string]struct {
		raw  string
		want []int // permitted statuses of the first response; none: the connection is closed without a response
		most int   // maximum number of responses; 0 is one
	}{
		"length and chunks":             {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 404, 405}, 2},
		"two lengths":                   {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nContent-Length: 99\r\n\r\n" + smuggled, []int{400}, 0},
		"a list of lengths":             {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0, 99\r\n\r\n" + smuggled, []int{400}, 0},
		"a length with a sign":          {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: +4\r\n\r\n" + smuggled, []int{400}, 0},
		"a negative length":             {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n" + smuggled, []int{400}, 0},
		"a length beyond numbers":       {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n" + smuggled, []int{400}, 0},
		"chunks in disguise":            {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 501}, 0},
		"chunks twice":                  {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 501}, 0},
		"a space before the colon":      {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding : chunked\r\n\r\n" + smuggled, []int{400}, 0},
		"a chunk beyond numbers":        {"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFF\r\nx", []int{400, 404, 405}, 0},
		"a bare carriage return":        {get("/healthz", "X-A: a\rX-B: b\r\n"), []int{400}, 0},
		"a NUL":                         {get("/healthz", "X-A: a\x00b\r\n"), []int{400}, 0},
		"an escape":                     {get("/healthz", "X-Bkapi-Request-Id: \x1b[2J\r\n"), []int{400}, 0},
		"a folded header":               {get("/healthz", "X-A: a\r\n b\r\n"), []int{200, 400}, 0},
		"a name with a blank":           {get("/healthz", "X A: a\r\n"), []int{400}, 0},
		"an upgrade to HTTP/2":          {get("/healthz", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"), []int{200}, 0},
		"HTTP/2 known in advance":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", []int{400, 403, 404, 505}, 0},
		"TLS":                           {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", []int{400}, 0},
		"no host":                       {"GET /healthz HTTP/1.1\r\n\r\n", []int{400}, 0},
		"two hosts":                     {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: other\r\n\r\n", []int{400}, 0},
		"HTTP/0.9":                      {"GET /healthz\r\n\r\n", []int{400}, 0},
		"HTTP/9.9":                      {"GET /healthz HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", []int{400, 505}, 0},
		"a method of controls":          {"G\x1bT /healthz HTTP/1.1\r\n" + head + "\r\n", []int{400}, 0},
		"a header that is too long":     {get("/healthz", "X-A: "+long+"\r\n"), []int{431}, 0},
		"too many headers":              {get("/healthz", strings.Repeat("X-A: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n", 10_000)), []int{431}, 0},
		"a path that is too long":       {get("/"+long, ""), []int{414, 431}, 0},
		"a path out of the tree":        {get("/../../../etc/passwd", ""), []int{301, 307, 400, 401, 404}, 0},
		"an escaped one":                {get("/%2e%2e/%2e%2e/etc/passwd", ""), []int{301, 307, 400, 401, 404}, 0},
		"a line break in a path":        {get("/%0d%0aSet-Cookie:%20a=b", ""), []int{301, 400, 401, 404}, 0},
		"a path that is none":           {get("/%zz", ""), []int{400}, 0},
		"a hundred requests in advance": {strings.Repeat("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 100) + get("/healthz", ""), []int{200}, 101},
	} {
		for listener, address := range map[string]string{"door": l.dispatcher, "status": l.status} {
			t.Run(name+" "+listener, func(t *testing.T) {
				t.Parallel()
				statuses, all := answers(t, address, c.raw)
				if len(statuses) == 0 || !slices.Contains(c.want, statuses[0]) || len(statuses) > max(c.most, 1) {
					t.Errorf("responses %v, want one of %v: %.300q", statuses, c.want, all)
				}
				if strings.Contains(all, "\r\nSet-Cookie") || strings.Contains(all, "root:") {
					t.Errorf("the response contains the attacker's text or a file: %.300q", all)
				}
				served(t, address)
			})
		}
	}
}

// served requests a path that needs no authentication.
func served(t *testing.T, address string) {
	t.Helper()
	if statuses, all := answers(t, address, get("/healthz", "")); !slices.Equal(statuses, []int{200}) {
		t.Errorf("response to another client: %.200q", all)
	}
}

// TestDuplicateAuthenticationHeadersAreRejected checks that two authentication headers, of which a proxy
// may have verified only one, and a header with a similar name do not authenticate
// a caller.
func TestDuplicateAuthenticationHeadersAreRejected(t *testing.T) {
	t.Parallel()
	l := startListeners(t)
	esb := func(headers string) string {
		return post("/api/c/compapi/v2/gse/get_proc_status/", headers, "{}")
	}
	procapi := "/api/v2/proc/get_proc_status/"
	for name, c := range map[string]struct {
		raw  string
		want int
	}{
		"two bearers":       {get("/v1/tasks", "Authorization: Bearer esb.wrong\r\nAuthorization: Bearer other.wrong\r\n"), 400},
		"in odd case":       {get("/v1/tasks", "AUTHORIZATION: Bearer esb.wrong\r\nauthorization: Bearer other.wrong\r\n"), 400},
		"two of the gate's": {get("/v1/tasks", "X-Bkapi-Authorization: {}\r\nx-bkapi-authorization: {}\r\n"), 400},
		"two applications":  {get("/v1/tasks", "Bk-App-Code: esb\r\nbk-app-code: other\r\n"), 400},
		"two users":         {get("/v1/tasks", "Bk-Username: a\r\nBk-Username: b\r\n"), 400},
		"nobody":            {get("/v1/tasks", ""), 401},
		"a packed body":     {post("/v1/tasks", "Authorization: Bearer esb.wrong\r\nContent-Encoding: gzip\r\n", "\x1f\x8b\x08\x00"), 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if statuses, all := answers(t, l.dispatcher, c.raw); !slices.Equal(statuses, []int{c.want}) {
				t.Errorf("responses %v, want %d: %.300q", statuses, c.want, all)
			}
		})
	}
	refusal := regexp.MustCompile(`"code":\s*"?0"?[,}]`)
	for name, raw := range map[string]string{
		"underscores are another header":  post(procapi, "Bk_App_Code: esb\r\nBk_Username: admin\r\n", "{}"),
		"an ESB said twice":               post(procapi, "Bk-App-Code: esb\r\nBk-App-Code: esb\r\n", "{}"),
		"credentials that are no objects": esb("X-Bkapi-Authorization: [[[[\r\n"),
		"one member twice":                esb(`X-Bkapi-Authorization: {"bk_app_code":"other","bk_app_code":"esb"}` + "\r\n"),
	} {
		if statuses, all := answers(t, l.dispatcher, raw); len(statuses) != 1 || statuses[0] >= 500 || refusal.MatchString(all) {
			t.Errorf("%s: response %.300q", name, all)
		}
	}
}

// TestExpensiveBodies sends small bodies that are expensive to process. None may
// cause an internal error, and memory must be limited.
func TestExpensiveBodies(t *testing.T) {
	t.Parallel()
	l := listeners{dispatcher: testenv.FreeAddress(t)}
	l.child = testenv.StartChild(t, nil, program(t), "up", "--agent=false", "--http", l.dispatcher, "--max-body", strconv.Itoa(4<<20), "--data", filepath.Join(t.TempDir(), "data"))
	l.child.WaitHTTP(t, patience, "http://"+l.dispatcher+"/readyz")
	wide := `{"action":"start","targets":[` + strings.TrimSuffix(strings.Repeat(`{},`, 1<<20), ",") + `]}`
	paths := []string{"/v1/tasks", "/api/c/compapi/v2/gse/operate_proc_multi/", "/api/c/compapi/v2/jobv3/operate_process/", "/api/v3/proc/0/2", "/api/v3/proc/search/0/2"}
	for name, body := range map[string]string{
		"depth":            strings.Repeat("[", 2<<20),
		"depth of objects": strings.Repeat(`{"a":`, 600_000),
		"width":            wide,
		"a huge number":    `{"action":1e999999999,"op_type":1e999999999,"timeout_seconds":1e999999999}`,
		"many digits":      `{"action":` + strings.Repeat("9", 1<<20) + `,"op_type":` + strings.Repeat("9", 1<<20) + `}`,
		"twice the same":   `{"action":"start","action":"stop","op_type":0,"op_type":1}`,
		"broken text":      "{\"action\":\"\xff\xfe\\ud800\"}",
		"NULs":             strings.Repeat("\x00", 1<<20),
		"nothing":          "",
	} {
		for _, path := range paths {
			t.Run(name+" "+path, func(t *testing.T) {
				t.Parallel()
				statuses, all := answers(t, l.dispatcher, post(path, "Content-Type: application/json\r\nBK_USER: admin\r\nHTTP_BLUEKING_SUPPLIER_ID: 0\r\n", body))
				if len(statuses) != 1 || statuses[0] >= 500 && statuses[0] != 503 || strings.Contains(all, "GSETASK") {
					t.Errorf("responses %v: %.300q", statuses, all)
				}
			})
		}
	}
	t.Run("many incomplete long bodies", func(t *testing.T) {
		t.Parallel()
		for range 200 {
			conn := dial(t, l.dispatcher)
			if _, err := fmt.Fprintf(conn, "POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n[", 4<<20); err != nil {
				t.Fatal(err)
			}
		}
		served(t, l.dispatcher)
	})
	t.Run("a body above the limit", func(t *testing.T) {
		t.Parallel()
		statuses, all := answers(t, l.dispatcher, post("/v1/tasks", "", strings.Repeat("x", 5<<20)))
		if !slices.Equal(statuses, []int{413}) {
			t.Errorf("responses %v: %.300q", statuses, all)
		}
	})
	t.Cleanup(func() {
		if peak := l.child.PeakMemory(t); peak > 2<<30 {
			t.Errorf("peak memory %d MiB", peak>>20)
		}
	})
}

// TestSlowClientsAreDisconnected checks that the listener closes connections with endless
// headers or bodies, and serves other clients meanwhile.
func TestSlowClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	l := startListeners(t)
	var slow sync.WaitGroup
	for listener, address := range map[string]string{"door": l.dispatcher, "status": l.status} {
		for what, begins := range map[string]string{
			"says nothing": "", "header": "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
			"body":   "POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer esb.wrong\r\nContent-Length: 1000\r\n\r\n[",
			"chunks": "POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n",
		} {
			for range 20 {
				conn := dial(t, address)
				slow.Go(func() {
					if _, err := io.WriteString(conn, begins); err != nil {
						return // the listener has closed it
					}
					if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("%s: %s: still open after %v", listener, what, 2*patience)
					}
				})
			}
		}
		served(t, address)
	}
	slow.Wait()
	served(t, l.dispatcher)
	served(t, l.status)
}

// TestConnectionsAreLimited checks that the listener closes further connections at
// once, and serves new ones when others have ended.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	const most = 50
	l := startListeners(t, "--http-connections", strconv.Itoa(most))
	var open []net.Conn
	taken := 0
	for range most + 10 {
		conn := dial(t, l.dispatcher)
		open = append(open, conn)
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") // the listener may have closed it
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			_ = resp.Body.Close() // only the status matters
			if resp.StatusCode == http.StatusOK {
				taken++
			}
		}
	}
	// A connection of the readiness checks may still be open.
	if taken > most || taken < most-5 {
		t.Errorf("%d connections accepted, want %d", taken, most)
	}
	served(t, l.status)
	for _, conn := range open {
		_ = conn.Close() // the server may have closed it
	}
	l.child.WaitHTTP(t, patience, "http://"+l.dispatcher+"/healthz")
}
