//go:build linux

package pressure

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

// line is a proxy to a server. When it is slow, all its connections share a number
// of bytes per second, and every response is delayed in addition.
type line struct {
	to    string
	slow  atomic.Bool
	sends sync.Mutex // locked while bytes are in transit
}

const (
	lineRate = 1 << 20 // bytes per second
	lineLate = 150 * time.Millisecond
)

// slowLine starts a proxy to a server and returns its address.
func slowLine(t *testing.T, to string) (l *line, addr string) {
	t.Helper()
	l = &line{to: to}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // the server ends with the test as well
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go l.connect(client)
		}
	}()
	return l, listener.Addr().String()
}

func (l *line) connect(client net.Conn) {
	server, err := net.Dial("tcp", l.to)
	if err != nil {
		client.Close()
		return
	}
	go l.carry(server, client, 0)
	l.carry(client, server, lineLate)
}

func (l *line) carry(to, from net.Conn, late time.Duration) {
	defer to.Close()
	defer from.Close()
	piece := make([]byte, 16<<10)
	for {
		n, err := from.Read(piece)
		if l.slow.Load() {
			<-time.After(late)
			l.sends.Lock()
			<-time.After(time.Duration(n) * time.Second / lineRate)
			l.sends.Unlock()
		}
		if _, failed := to.Write(piece[:n]); err != nil || failed != nil {
			return
		}
	}
}

// api describes the success and the rejection of one API.
type api struct {
	path    string
	body    func(hosts, size int) []byte
	refused *regexp.Regexp // text of its 503
}

func apis() map[string]api {
	const process = `"meta":{"namespace":"pressure","name":"sim"},"spec":{"identity":{"proc_name":"sim","setup_path":"/opt/sim"}},"op_type":2,"hosts":[%s]`
	const job = `"bk_scope_type":"biz","bk_scope_id":"2","op_type":2,"process_infos":[{"setup_path":"/opt/sim","proc_name":"sim","pid_path":"/opt/sim/pid","ip_list":[%s]}]`
	of := func(format string) func(hosts, size int) []byte {
		return func(hosts, size int) []byte {
			list := make([]string, hosts)
			for i := range list {
				list[i] = fmt.Sprintf(`{"ip":%q,"bk_cloud_id":0}`, address(i))
			}
			return padded(fmt.Appendf(nil, "{"+format+"}", strings.Join(list, ",")), size)
		}
	}
	return map[string]api{
		"native":      {"/v1/tasks", operation, tryAgain},
		"GSE":         {"/api/v2/proc/operate_proc_v2", of(process), regexp.MustCompile(`"code":1650300`)},
		"GSE, by ESB": {"/api/c/compapi/v2/gse/operate_proc_v2/", of(process), regexp.MustCompile(`"result":false.*"code":1306201|"code":1306201.*"result":false`)},
		"Job":         {"/api/c/compapi/v2/job/operate_process/", of(job), regexp.MustCompile(`"result":false.*"code":1210001|"code":1210001.*"result":false`)},
	}
}

// callers submit tasks and record the accepted ones.
type callers struct {
	t             *testing.T
	dispatcherURL string

	mu       sync.Mutex
	accepted map[string]int    // id to number of acceptances
	keyed    map[string]string // idempotency key to the returned id, if any
	refused  map[string]int    // API to number of rejections
	offered  int64
}

var taskID = regexp.MustCompile(`GSETASK:\d+:\d+`)

// offer submits a task once. The dispatcher must accept it or respond 503 with
// Retry-After.
func (c *callers) offer(family string, a *api, body []byte, key string) {
	var headers [][2]string
	if key != "" {
		headers = append(headers, [2]string{"Idempotency-Key", key})
	}
	got := post(c.dispatcherURL+a.path, body, headers...)
	id := string(taskID.Find(got.body))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offered += int64(len(body))
	if key != "" {
		c.keyed[key] = id
	}
	switch {
	case got.status/100 == 2 && id != "" && !strings.Contains(string(got.body), `"result":false`):
		c.accepted[id]++
	case got.status == http.StatusServiceUnavailable && got.retry != "" && a.refused.Match(got.body):
		c.refused[family]++
	default:
		c.t.Errorf("%s: status %d, Retry-After %q: %.300s", family, got.status, got.retry, got.body)
	}
}

// define creates processes with the CMDB API, and returns the number of successes.
func (c *callers) define(n int) (defined int) {
	headers := [][2]string{{"BK_USER", "admin"}, {"HTTP_BLUEKING_SUPPLIER_ID", "0"}}
	for i := range n {
		got := post(c.dispatcherURL+"/api/v3/proc/0/2", fmt.Appendf(nil, `{"bk_process_name":"p%d"}`, i), headers...)
		switch {
		case got.status == http.StatusOK && strings.Contains(string(got.body), `"result":true`):
			defined++
		case strings.Contains(string(got.body), `"result":false,"bk_error_code":1108008`) && got.retry != "":
		default:
			c.t.Errorf("CMDB: status %d, Retry-After %q: %.300s", got.status, got.retry, got.body)
		}
	}
	return defined
}

// TestSlowStore delays Redis' replies and limits its rate, while a worker
// receives many results and callers of every API submit far more than Redis
// accepts. The dispatcher must accept each submission or respond 503 with
// Retry-After, both roles must stay within their memory, and all accepted tasks
// must end when Redis is fast again.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	const hosts = 2000
	r := newRig(t)
	way, addr := slowLine(t, r.redis.Addr)
	r.store = "redis://" + addr
	dispatcher, dispatcherURL := r.role("dispatcher", "--submissions=false", "--slack", "10m")
	worker, _ := r.role("worker")
	r.simulate(hosts)
	var before []string
	for range 20 { // results of these arrive meanwhile
		before = append(before, accepts(t, dispatcherURL, operation(hosts, 0)))
	}

	way.slow.Store(true)
	c := &callers{t: t, dispatcherURL: dispatcherURL, accepted: map[string]int{}, keyed: map[string]string{}, refused: map[string]int{}}
	var offering sync.WaitGroup
	var offers atomic.Int64
	for family, a := range apis() {
		body := a.body(100, 1<<20)
		for range 40 {
			offering.Go(func() {
				for offers.Add(1) < 1000 {
					c.offer(family, &a, body, "")
				}
			})
		}
	}
	native := apis()["native"]
	for i := range 4 {
		offering.Go(func() { c.offer("native", &native, operation(100, 16<<20), "big "+strconv.Itoa(i)) })
	}
	defined := c.define(3)
	offering.Wait()
	way.slow.Store(false)

	for key, told := range c.keyed {
		var id string
		testenv.Eventually(t, patience, func() bool {
			a := post(dispatcherURL+native.path, operation(100, 0), [2]string{"Idempotency-Key", key})
			id = string(taskID.Find(a.body))
			return a.status/100 == 2
		}, "a repeat is accepted")
		if told != "" && id != told && readTask(t, dispatcherURL, told).State != "rejected" {
			t.Errorf("the task of key %q changed from %s to %s", key, told, id)
		}
		c.accepted[id]++
	}
	for id := range c.accepted {
		succeeds(t, dispatcherURL, id, 100)
	}
	for _, id := range before {
		succeeds(t, dispatcherURL, id, hosts)
	}
	var found struct {
		Data struct{ Count int }
	}
	a := post(dispatcherURL+"/api/v3/proc/search/0/2", []byte("{}"), [2]string{"BK_USER", "admin"}, [2]string{"HTTP_BLUEKING_SUPPLIER_ID", "0"})
	if err := json.Unmarshal(a.body, &found); err != nil || found.Data.Count < defined {
		t.Errorf("defined %d processes, found %s: %v", defined, a.body, err)
	}
	t.Logf("%d accepted, rejected %v, %d processes", len(c.accepted), c.refused, defined)
	for family := range apis() {
		if c.refused[family] == 0 {
			t.Errorf("no caller of %s got a 503", family)
		}
	}
	bounded(t, "the worker", worker)
	fits(t, dispatcher, c.offered)
}
