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

// line leads to a server. Once it is slow, all its connections share so many
// bytes in a second, and every answer is late besides.
type line struct {
	to    string
	slow  atomic.Bool
	sends sync.Mutex // held for as long as bytes take
}

const (
	lineRate = 1 << 20 // bytes in a second
	lineLate = 150 * time.Millisecond
)

// slowLine opens a line to a server and returns the address at which it begins.
func slowLine(t *testing.T, to string) (l *line, addr string) {
	t.Helper()
	l = &line{to: to}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // what it leads to ends with the test as well
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

// api is how one family of callers is accepted and turned away.
type api struct {
	path    string
	body    func(hosts, size int) []byte
	refused *regexp.Regexp // what it says with status 503
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

// callers offer tasks and keep what was accepted.
type callers struct {
	t    *testing.T
	door string

	mu       sync.Mutex
	accepted map[string]int    // by id: times
	keyed    map[string]string // by idempotency key: the id that was told, if any
	refused  map[string]int    // by family
	offered  int64
}

var taskID = regexp.MustCompile(`GSETASK:\d+:\d+`)

// offer submits a task once. It must be accepted, or the caller told to come
// again.
func (c *callers) offer(family string, a *api, body []byte, key string) {
	var headers [][2]string
	if key != "" {
		headers = append(headers, [2]string{"Idempotency-Key", key})
	}
	got := post(c.door+a.path, body, headers...)
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
		c.t.Errorf("%s was answered %d, Retry-After %q: %.300s", family, got.status, got.retry, got.body)
	}
}

// define has the CMDB keep processes, and returns how many it did.
func (c *callers) define(n int) (defined int) {
	headers := [][2]string{{"BK_USER", "admin"}, {"HTTP_BLUEKING_SUPPLIER_ID", "0"}}
	for i := range n {
		got := post(c.door+"/api/v3/proc/0/2", fmt.Appendf(nil, `{"bk_process_name":"p%d"}`, i), headers...)
		switch {
		case got.status == http.StatusOK && strings.Contains(string(got.body), `"result":true`):
			defined++
		case strings.Contains(string(got.body), `"result":false,"bk_error_code":1108008`) && got.retry != "":
		default:
			c.t.Errorf("CMDB was answered %d, Retry-After %q: %.300s", got.status, got.retry, got.body)
		}
	}
	return defined
}

// TestAStoreThatIsSlow has Redis answer late, and few bytes reach it, while
// results pour into a worker and callers of every family offer far more than
// it takes. Each is accepted or told to come again, both roles keep their memory,
// and all that was accepted is done when Redis is fast again.
func TestAStoreThatIsSlow(t *testing.T) {
	t.Parallel()
	const hosts = 2000
	r := newRig(t)
	way, addr := slowLine(t, r.redis.Addr)
	r.store = "redis://" + addr
	dispatcher, door := r.role("dispatcher", "--submissions=false", "--slack", "10m")
	worker, _ := r.role("worker")
	r.simulate(hosts)
	var before []string
	for range 20 { // results of these are on their way
		before = append(before, accepts(t, door, operation(hosts, 0)))
	}

	way.slow.Store(true)
	c := &callers{t: t, door: door, accepted: map[string]int{}, keyed: map[string]string{}, refused: map[string]int{}}
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
			a := post(door+native.path, operation(100, 0), [2]string{"Idempotency-Key", key})
			id = string(taskID.Find(a.body))
			return a.status/100 == 2
		}, "a repeat is accepted")
		if told != "" && id != told && look(t, door, told).State != "rejected" {
			t.Errorf("the task of key %q was %s, and is %s", key, told, id)
		}
		c.accepted[id]++
	}
	for id := range c.accepted {
		succeeds(t, door, id, 100)
	}
	for _, id := range before {
		succeeds(t, door, id, hosts)
	}
	var found struct {
		Data struct{ Count int }
	}
	a := post(door+"/api/v3/proc/search/0/2", []byte("{}"), [2]string{"BK_USER", "admin"}, [2]string{"HTTP_BLUEKING_SUPPLIER_ID", "0"})
	if err := json.Unmarshal(a.body, &found); err != nil || found.Data.Count < defined {
		t.Errorf("%d processes were defined, found %s: %v", defined, a.body, err)
	}
	t.Logf("%d accepted, refused %v, %d processes", len(c.accepted), c.refused, defined)
	for family := range apis() {
		if c.refused[family] == 0 {
			t.Errorf("nobody of %s was told to come again", family)
		}
	}
	bounded(t, "the worker", worker)
	fits(t, dispatcher, c.offered)
}
