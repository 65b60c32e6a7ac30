//go:build linux

package pressure

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestIncompleteBodiesOfUnknownCallers sends incomplete bodies without an application in a
// header. The dispatcher must stay within its memory and close these connections,
// and meanwhile respond to a caller that names its application in a header.
func TestIncompleteBodiesOfUnknownCallers(t *testing.T) {
	t.Parallel()
	const strangers, declared, sent = 400, 40 << 20, 4 << 20
	r := newRig(t)
	apps := filepath.Join(t.TempDir(), "apps.yaml")
	secret, err := exec.Command(program(t), "app", "add", "esb", "--skip-user-auth", "--apps", apps).Output()
	if err != nil {
		t.Fatal(err)
	}
	dispatcher, dispatcherURL := r.role("dispatcher", "--apps", apps)
	const path = "/api/v2/proc/get_proc_operate_result_v2"
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", path, declared)
	text := head + strings.Repeat(" ", sent)
	var sending, ended sync.WaitGroup
	for range strangers {
		conn, err := net.Dial("tcp", strings.TrimPrefix(dispatcherURL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the dispatcher may have closed it
		sending.Add(1)
		ended.Go(func() {
			_, _ = io.WriteString(conn, text[:len(head)+1])
			sending.Done()
			// The dispatcher may close the connection before it has read
			// everything.
			_, _ = io.WriteString(conn, text[len(head)+1:])
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	sending.Wait()
	known := [2]string{"X-Bkapi-Authorization", fmt.Sprintf(`{"bk_app_code":"esb","bk_app_secret":%q,"bk_username":"ann"}`, strings.TrimSpace(string(secret)))}
	if a := post(dispatcherURL+path, []byte(`{"task_id":"GSETASK:0"}`), known); a.status != http.StatusOK {
		t.Errorf("authenticated caller: %d %.300s", a.status, a.body)
	}
	ended.Wait() // the dispatcher closes the connections, or the test times out
	fits(t, dispatcher, strangers*sent)
}
