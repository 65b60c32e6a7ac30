//go:build linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// cmdb calls the process API of the legacy CMDB like its clients.
type cmdb struct {
	t   *testing.T
	url string
}

func (u *up) cmdb() *cmdb { return &cmdb{t: u.t, url: u.c.url} }

// cmdbAnswer is the envelope of every response.
type cmdbAnswer struct {
	status  int
	text    string
	Result  bool            `json:"result"`
	Code    int             `json:"bk_error_code"`
	Message string          `json:"bk_error_msg"`
	Data    json.RawMessage `json:"data"`
	ID      int64           `json:"bk_process_id"`
	Task    string          `json:"task_id"`
}

func (a cmdbAnswer) String() string { return fmt.Sprintf("%d %s", a.status, a.text) }

// ask sends a request, "<method> <path below /api/v3/proc/>". The error means that
// there was no response.
func (c *cmdb) ask(way, body string) (cmdbAnswer, error) {
	method, path, _ := strings.Cut(way, " ")
	if !strings.HasPrefix(path, "/") {
		path = "/api/v3/proc/" + path
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), finishTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return cmdbAnswer{}, err
	}
	req.Header.Set("BK_USER", "admin")
	req.Header.Set("HTTP_BLUEKING_SUPPLIER_ID", "0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return cmdbAnswer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return cmdbAnswer{}, err
	}
	asDescribed(c.t, req, resp, text)
	a := cmdbAnswer{status: resp.StatusCode, text: string(text)}
	return a, json.Unmarshal(text, &a)
}

// must is ask for a request that must get a status and a code; code 0 is a success.
func (c *cmdb) must(way, body string, status, code int) cmdbAnswer {
	c.t.Helper()
	a, err := c.ask(way, body)
	if err != nil {
		c.t.Fatalf("%s: %v", way, err)
	}
	ok := code == 0
	if a.status != status || a.Code != code || a.Result != ok || (a.Message == "") != ok || !ok && string(a.Data) != "null" {
		c.t.Errorf("%s %.300s: %v, want %d with %d", way, body, a, status, code)
	}
	return a
}

// define creates a process and returns its id.
func (c *cmdb) define(business, body string) string {
	c.t.Helper()
	return fmt.Sprint(c.must("POST "+business, body, 200, 0).ID)
}

// all returns all processes of a business as text.
func (c *cmdb) all(business string) string {
	c.t.Helper()
	return c.must("POST search/"+business, `{"page":{"sort":"bk_process_id"}}`, 200, 0).text
}

// onEveryStore runs a test with each store.
func onEveryStore(t *testing.T, test func(u *up)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		u := newUp(t, "--agent=false")
		u.start()
		test(u)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		u := newUp(t, "--agent=false", "--redis", redistest.Start(t).URL())
		u.start()
		test(u)
	})
}

// cmdbSeed is the process of the published document.
const cmdbSeed = `{"bk_process_name":"nginx","port":80,"bind_ip":"1","protocol":"1","bk_func_name":"nginx","work_path":"/data/cc/running","user":"cc"}`

func TestTheCMDBAPIMatchesItsDocumentation(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(u *up) {
		c := u.cmdb()
		id := c.define("0/12233", cmdbSeed)
		found := c.must("POST search/0/12233", `{"page":{"start":0,"limit":10,"sort":"bk_process_name"},"fields":["bk_process_id","bk_process_name"],"condition":{"bk_biz_id":"12233","bk_process_name":"gin"}}`, 200, 0)
		if want := `{"count":1,"info":[{"bk_process_id":` + id + `,"bk_process_name":"nginx"}]}`; string(found.Data) != want {
			u.t.Errorf("search: %s, want %s", found.Data, want)
		}
		c.must("PUT 0/12233/"+id, `{"bk_process_name":"nginx"}`, 200, 0)
		c.must("PUT 0/12233", `{"bk_process_id":"`+id+`","start_cmd":"./start.sh 8080","port":"1000"}`, 200, 0)
		var detail []struct {
			ID    string `json:"bk_property_id"`
			Name  string `json:"bk_property_name"`
			Value any    `json:"bk_property_value"`
		}
		if err := json.Unmarshal(c.must("GET 0/12233/"+id, "", 200, 0).Data, &detail); err != nil || len(detail) != 22 {
			u.t.Fatalf("%d attributes, %v", len(detail), err)
		}
		for i, want := range map[int]string{
			0: "bk_biz_id 业务ID 12233", 1: "bk_process_name 进程名 nginx", 3: "bind_ip 绑定IP 1", 4: "port 端口 1000", 5: "protocol 协议 1",
			7: "bk_func_name 功能名 nginx", 10: "proc_num 启动数量 <nil>", 13: "start_cmd 启动命令 ./start.sh 8080", 19: "auto_start 是否自动拉起 false",
			20: "auto_time_gap 拉起间隔 <nil>", 21: "bk_start_param_regex 启动参数匹配规则 ",
		} {
			if got := fmt.Sprint(detail[i].ID, " ", detail[i].Name, " ", detail[i].Value); got != want {
				u.t.Errorf("attribute %d is %q, want %q", i, got, want)
			}
		}
		c.modules(id)
		c.must("DELETE 0/12233/"+id, "", 200, 0)
	})
}

// modules binds a process to modules of a topology, and unbinds it.
func (c *cmdb) modules(id string) {
	c.t.Helper()
	topology := &client{t: c.t, url: c.url}
	status, text, ok := topology.call(http.MethodPut, "/v1/topology/12233", "", json.RawMessage(
		`{"sets":[{"name":"s1","modules":[{"name":"db"},{"name":"gs"},{"name":"idle","default":1}]},{"name":"s2","modules":[{"name":"db"}]}]}`))
	if !ok || status != http.StatusOK {
		c.t.Fatalf("topology: %d %s", status, text)
	}
	shows := func(want string) {
		c.t.Helper()
		if got := c.must("GET module/0/12233/"+id, "", 200, 0); string(got.Data) != want {
			c.t.Errorf("modules: %s, want %s", got.Data, want)
		}
	}
	shows(`[{"bk_module_name":"db","set_num":2,"is_bind":0},{"bk_module_name":"gs","set_num":1,"is_bind":0}]`)
	for _, module := range []string{"gs", "gs", "not yet there/%2F"} {
		c.must("PUT module/0/12233/"+id+"/"+url.PathEscape(module), "", 200, 0)
	}
	shows(`[{"bk_module_name":"db","set_num":2,"is_bind":0},{"bk_module_name":"gs","set_num":1,"is_bind":1}]`)
	for module, count := range map[string]string{"gs": "1", "not yet there/%2F": "1", "db": "0", "g": "0"} {
		found := c.must("POST search/0/12233", fmt.Sprintf(`{"fields":["x"],"condition":{"bk_module_name":%q}}`, module), 200, 0)
		if !strings.HasPrefix(string(found.Data), `{"count":`+count+`,`) {
			c.t.Errorf("bound to %s: %s, want %s", module, found.Data, count)
		}
	}
	c.must("DELETE 0/12233/"+id, "", 500, 1108013)
	for _, module := range []string{"gs", "gs", "not yet there/%2F", "never there"} {
		c.must("DELETE module/0/12233/"+id+"/"+url.PathEscape(module), "", 200, 0)
	}
	shows(`[{"bk_module_name":"db","set_num":2,"is_bind":0},{"bk_module_name":"gs","set_num":1,"is_bind":0}]`)
}

// cmdbRefusals are rejected requests. $a and $b are processes; $b is bound.
func cmdbRefusals() []struct {
	way, body    string
	status, code int
} {
	text := func(n int) string { return strings.Repeat("x", n) }
	return []struct {
		way, body    string
		status, code int
	}{
		{"POST 0/two", cmdbSeed, 400, 1199003},
		{"POST 0/0", cmdbSeed, 400, 1199003},
		{"POST 0/99999999999999999999", cmdbSeed, 400, 1199003},
		{"POST 0/2", "", 400, 1199000},
		{"POST 0/2", "{", 400, 1199000},
		{"POST 0/2", "[]", 400, 1199000},
		{"POST 0/2", "null", 400, 1199000},
		{"POST 0/2", "{\"bk_process_name\":\"\xff\"}", 400, 1199000},
		{"POST 0/2", "{}", 400, 1199028},
		{"POST 0/2", `{"bk_process_name":""}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":null}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":1}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"` + text(257) + `"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"first"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","bk_func_id":"f1"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","bk_func_name":"java","bk_start_param_regex":"-a"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","description":true}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","description":{}}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","start_cmd":"` + text(2001) + `"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","bind_ip":"5"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","bind_ip":1}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","protocol":"3"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":0}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":65536}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":80.5}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":"080"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":"80,"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":"80 ,81"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":"80-81-82"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","port":["80"]}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","proc_num":0}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","proc_num":"1"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","priority":10001}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","timeout":1.5}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","auto_time_gap":-1}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","auto_start":1}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","bk_funcName":"x"}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","bk_process_id":1}`, 400, 1199028},
		{"POST 0/2", `{"bk_process_name":"n","create_time":"x"}`, 400, 1199028},

		{"POST search/0/x", "{}", 400, 1199003},
		{"POST search/0/2", "", 400, 1199000},
		{"POST search/0/2", `{"page":{"limit":201}}`, 400, 1199006},
		{"POST search/0/2", `{"page":{"limit":-1}}`, 400, 1199006},
		{"POST search/0/2", `{"page":{"start":-1}}`, 400, 1199006},
		{"POST search/0/2", `{"page":{"start":"0"}}`, 400, 1199006},
		{"POST search/0/2", `{"page":{"sort":"nothing"}}`, 400, 1199006},
		{"POST search/0/2", `{"fields":"bk_process_id"}`, 400, 1199006},
		{"POST search/0/2", `{"condition":{"nothing":1}}`, 400, 1199006},
		{"POST search/0/2", `{"condition":{"port":{"$regex":"8"}}}`, 400, 1199006},
		{"POST search/0/2", `{"condition":{"port":{"$in":"8"}}}`, 400, 1199006},
		{"POST search/0/2", `{"condition":{"port":[8]}}`, 400, 1199006},

		{"GET 0/2/x", "", 400, 1199003},
		{"GET 0/x/$a", "", 400, 1199003},
		{"GET 0/2/999999", "", 500, 1108001},
		{"GET 0/2/0", "", 500, 1108001},
		{"GET 0/3/$a", "", 500, 1108001},
		{"GET other/2/$a", "", 500, 1108001},

		{"DELETE 0/2/x", "", 400, 1199003},
		{"DELETE 0/2/$b", "", 500, 1108013},

		{"PUT 0/2/x", `{"user":"u"}`, 400, 1199003},
		{"PUT 0/x/$a", `{"user":"u"}`, 400, 1199003},
		{"PUT 0/2/$a", `x`, 400, 1199000},
		{"PUT 0/2/0", `{"bk_process_name":"new"}`, 400, 1199028},
		{"PUT 0/2/-1", `{"user":"u"}`, 400, 1199028},
		{"PUT 0/2/999999", `{"user":"u"}`, 400, 1199028},
		{"PUT 0/3/$a", `{"user":"u"}`, 400, 1199028},
		{"PUT 0/2/$a", `{"bk_process_name":"second"}`, 400, 1199028},
		{"PUT 0/2/$a", `{"bk_process_name":null}`, 400, 1199028},
		{"PUT 0/2/$a", `{"user":"u","port":"x"}`, 400, 1199028},
		{"PUT 0/2/$a", `{"user":"u","nothing":"x"}`, 400, 1199028},

		{"PUT 0/2", `{"user":"u"}`, 400, 1108009},
		{"PUT 0/2", `{"bk_process_id":$a,"user":"u"}`, 400, 1108009},
		{"PUT 0/2", `{"bk_process_id":null,"user":"u"}`, 400, 1108009},
		{"PUT 0/2", `{"bk_process_id":"","user":"u"}`, 400, 1199003},
		{"PUT 0/2", `{"bk_process_id":"$a, $b","user":"u"}`, 400, 1199003},
		{"PUT 0/2", `{"bk_process_id":"$a,","user":"u"}`, 400, 1199003},
		{"PUT 0/x", `{"bk_process_id":"$a","user":"u"}`, 400, 1199003},
		{"PUT 0/2", `{"bk_process_id":"$a`, 400, 1199000},
		{"PUT 0/2", `{"bk_process_id":"$a,$b,999999","user":"u"}`, 400, 1199041},
		{"PUT 0/2", `{"bk_process_id":"$a,0","user":"u"}`, 400, 1199041},
		{"PUT 0/3", `{"bk_process_id":"$a","user":"u"}`, 400, 1199041},
		{"PUT 0/2", `{"bk_process_id":"$a,$b","user":"u","priority":"x"}`, 400, 1199041},
		{"PUT 0/2", `{"bk_process_id":"$a,$b","nothing":"x"}`, 400, 1199041},
		{"PUT 0/2", `{"bk_process_id":"$a,$b","bk_func_name":"java","bk_start_param_regex":"-same"}`, 400, 1199041},
		{"PUT 0/2", `{"bk_process_id":"$a","bk_process_name":"x"}`, 400, 1199006},
		{"PUT 0/2", `{"bk_process_id":"$a","bk_func_id":"x"}`, 400, 1199006},

		{"GET module/0/2/x", "", 400, 1199009},
		{"GET module/0/x/$a", "", 400, 1199009},
		{"PUT module/0/2/x/web", "", 400, 1199003},
		{"PUT module/0/2/999999/web", "", 500, 1108002},
		{"PUT module/0/2/0/web", "", 500, 1108002},
		{"PUT module/0/3/$a/web", "", 500, 1108002},
		{"PUT module/0/2/$a/" + text(257), "", 400, 1199006},
		{"DELETE module/0/x/$a/web", "", 400, 1199003},

		{"GET operate/process/taskresult/1/2", "", 404, 1199019},
		{"PATCH 0/2/$a", "{}", 404, 1199019},
		{"GET /api/v3/proc", "", 404, 1199019},
		{"POST /api/v77/proc/x", "", 404, 1199019},

		// Accepted requests that change nothing.
		{"DELETE 0/2/999999", "", 200, 0},
		{"DELETE module/0/2/$a/web", "", 200, 0},
		{"DELETE module/0/2/999999/web", "", 200, 0},
		{"PUT module/0/2/$b/web", "", 200, 0},
		{"GET module/0/2/999999", "", 200, 0},
	}
}

func TestRejectedCMDBRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(u *up) {
		c := u.cmdb()
		a := c.define("0/2", `{"bk_process_name":"first","bk_func_id":"f1","bk_func_name":"java","bk_start_param_regex":"-a","port":8080}`)
		b := c.define("0/2", `{"bk_process_name":"second","bk_func_name":"java","bk_start_param_regex":"-b","auto_start":true}`)
		c.must("PUT module/0/2/"+b+"/web", "", 200, 0)
		before, third := c.all("0/2"), c.all("0/3")
		ids := strings.NewReplacer("$a", a, "$b", b)
		for _, row := range cmdbRefusals() {
			c.must(ids.Replace(row.way), ids.Replace(row.body), row.status, row.code)
		}
		if after := c.all("0/2"); after != before {
			u.t.Errorf("before %s\nafter %s", before, after)
		}
		if after := c.all("0/3"); after != third {
			u.t.Errorf("before %s\nafter %s", third, after)
		}
		status, text, ok := u.c.call(http.MethodGet, "/api/v3/proc/0/2/"+a, "", nil)
		if !ok || status != http.StatusInternalServerError || strings.Count(string(text), "1199027") != 2 {
			u.t.Errorf("without headers: %d %s", status, text)
		}
		c.onlyOneWins(50)

		before = c.all("0/2")
		u.child.Kill()
		u.start()
		if after := c.all("0/2"); after != before {
			u.t.Errorf("before it was killed %s\nafter %s", before, after)
		}
		c.must("DELETE 0/2/"+b, "", 500, 1108013)
		if id := c.define("0/2", `{"bk_process_name":"third"}`); len(id) < len(b) || len(id) == len(b) && id <= b {
			u.t.Errorf("a new process has the id %s, an old one %s", id, b)
		}
	})
}

// onlyOneWins creates processes of one name concurrently.
func (c *cmdb) onlyOneWins(writers int) {
	c.t.Helper()
	answers := make([]cmdbAnswer, writers)
	var writing sync.WaitGroup
	begin := make(chan struct{})
	for i := range writers {
		writing.Go(func() {
			<-begin
			var err error
			if answers[i], err = c.ask("POST 0/50", `{"bk_process_name":"wanted"}`); err != nil {
				c.t.Error(err)
			}
		})
	}
	close(begin)
	writing.Wait()
	won := 0
	for _, a := range answers {
		switch {
		case a.Result && a.status == http.StatusOK:
			won++
		case a.status != http.StatusBadRequest || a.Code != 1199028 || !strings.Contains(a.Message, "bk_process_name"):
			c.t.Errorf("rejected duplicate: %v", a)
		}
	}
	if all := c.all("0/50"); won != 1 || !strings.Contains(all, `"count":1,`) {
		c.t.Errorf("%d successes, and the processes %s", won, all)
	}
}

// TestABatchIsWholeWhenTheSystemIsKilled changes batches of processes concurrently
// and repeatedly while the system is killed. Afterwards all processes of each batch
// must have one value, and at least the last confirmed one.
func TestABatchIsWholeWhenTheSystemIsKilled(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(u *up) {
		c := u.cmdb()
		batches := []*batch{c.batch("0/1", 200), c.batch("0/2", 200)}
		for round := range 3 {
			enough := make(chan struct{}, 100)
			var writing sync.WaitGroup
			for _, b := range batches {
				writing.Go(func() { b.changeUntilGone(enough) })
			}
			ended := make(chan struct{})
			go func() { writing.Wait(); close(ended) }()
			for range 4 + 3*round { // so that the next batch is in progress
				select {
				case <-enough:
				case <-ended: // one batch was rejected, which is reported
				}
			}
			u.child.Kill()
			<-ended
			u.start()
			for _, b := range batches {
				b.check()
			}
		}
	})
}

// batch is a set of processes that are changed together.
type batch struct {
	*cmdb
	business string
	ids      string
	size     int
	asked    int // number of the last requested change
	answered int // number of the last confirmed change
}

func (c *cmdb) batch(business string, size int) *batch {
	c.t.Helper()
	ids := make([]string, size)
	var defining sync.WaitGroup
	for worker := range 10 {
		defining.Go(func() {
			for i := worker; i < size; i += 10 {
				a, err := c.ask("POST "+business, fmt.Sprintf(`{"bk_process_name":"p%d"}`, i))
				if err != nil || !a.Result {
					c.t.Errorf("process %d: %v, %v", i, a, err)
				}
				ids[i] = fmt.Sprint(a.ID)
			}
		})
	}
	defining.Wait()
	return &batch{cmdb: c, business: business, ids: strings.Join(ids, ","), size: size}
}

func (b *batch) command(n int) string {
	return fmt.Sprintf("./%s %d", []string{"blue", "green"}[n%2], n)
}

// changeUntilGone changes the batch until there is no response, and signals each
// response.
func (b *batch) changeUntilGone(answered chan<- struct{}) {
	for {
		b.asked++
		a, err := b.ask("PUT "+b.business, fmt.Sprintf(`{"bk_process_id":%q,"start_cmd":%q}`, b.ids, b.command(b.asked)))
		if err != nil {
			return
		}
		if !a.Result {
			b.t.Errorf("batch %d: %v", b.asked, a)
			return
		}
		b.answered = b.asked
		select {
		case answered <- struct{}{}:
		default: // no receiver
		}
	}
}

// check reads every process of the batch.
func (b *batch) check() {
	b.t.Helper()
	found := b.must("POST search/"+b.business, `{"fields":["start_cmd"]}`, 200, 0)
	var data struct {
		Count int `json:"count"`
		Info  []struct {
			Start string `json:"start_cmd"`
		} `json:"info"`
	}
	if err := json.Unmarshal(found.Data, &data); err != nil || data.Count != b.size || len(data.Info) != b.size {
		b.t.Fatalf("%d of %d processes, %v", len(data.Info), data.Count, err)
	}
	first := data.Info[0].Start
	if first != b.command(b.answered) && first != b.command(b.asked) {
		b.t.Errorf("the batch has %q, confirmed was %q and requested %q", first, b.command(b.answered), b.command(b.asked))
	}
	for i, p := range data.Info {
		if p.Start != first {
			b.t.Fatalf("process %d has %q, the first %q", i, p.Start, first)
		}
	}
}
