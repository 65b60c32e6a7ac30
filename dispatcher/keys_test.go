package dispatcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/taskstore"
)

// keyed is a request of one of GSE's operate calls, and the keys that its
// results must have.
type keyed struct {
	call string
	body []byte
	keys map[string]bool
}

// named is one item of a request: which process on which hosts. A list that is
// nil is left out.
type named struct {
	namespace, name string
	hosts           []map[string]any
	agents          []string
}

func drawNamed(t *rapid.T, bulk int) named {
	// One machine may be written in many ways, and each has a key of its own.
	ip := rapid.SampledFrom([]any{
		"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1", "fd00::1", "FD00::1", "fd00:0:0::1", "fd00::2", "", nil,
	})
	address := rapid.Custom(func(t *rapid.T) map[string]any {
		h := map[string]any{"ip": ip.Draw(t, "ip"), "bk_cloud_id": rapid.IntRange(0, 2).Draw(t, "cloud")}
		if rapid.Bool().Draw(t, "has a supplier") {
			h["bk_supplier_id"] = rapid.IntRange(0, 2).Draw(t, "supplier")
		}
		return h
	})
	id := rapid.SampledFrom([]string{
		"02000000005254000b3dc91680054235f3a1", "nobody", "", "0:10.0.0.1", "0:fd00::1", "0:FD00::1", "00:10.0.0.1", "0:10.0.0.999", "ns:web",
	})
	n := named{
		namespace: rapid.SampledFrom([]string{"ns", "GSEKIT_BIZ_2"}).Draw(t, "namespace"),
		name:      rapid.SampledFrom([]string{"web", "web_1", "Web"}).Draw(t, "name"),
		hosts:     rapid.SliceOfN(address, 1, 6).Draw(t, "hosts"),
	}
	if rapid.Bool().Draw(t, "has agent ids") {
		n.agents = rapid.SliceOfN(id, 0, 6).Draw(t, "agents")
	}
	for i := range bulk {
		n.hosts = append(n.hosts, map[string]any{"ip": fmt.Sprintf("10.1.%d.%d", i>>8, i&255), "bk_cloud_id": 0})
		if len(n.agents) > 0 {
			n.agents = append(n.agents, strconv.Itoa(i))
		}
	}
	return n
}

// members returns the members of the item in a request. Only keys of v1 contain suppliers.
func (n *named) members(op int, v1 bool) map[string]any {
	m := map[string]any{"meta": map[string]any{"namespace": n.namespace, "name": n.name, "labels": nil}, "op_type": op, "hosts": n.hosts}
	if n.agents != nil {
		m["agent_id_list"] = n.agents
	}
	if !v1 {
		m["spec"] = map[string]any{"identity": map[string]any{"proc_name": "nginx", "setup_path": "/srv"}}
	}
	return m
}

func (n *named) addKeys(keys map[string]bool, v1 bool) {
	rest := ":" + n.namespace + ":" + n.name
	if len(n.agents) > 0 {
		for _, id := range n.agents {
			keys[id+rest] = true
		}
		return
	}
	for _, h := range n.hosts {
		ip, _ := h["ip"].(string)
		key := fmt.Sprint(h["bk_cloud_id"], ":")
		if v1 {
			supplier, _ := h["bk_supplier_id"].(int)
			key += fmt.Sprint(supplier, ":")
		}
		keys[key+ip+rest] = true
	}
}

func drawKeyed(t *rapid.T) keyed {
	k := keyed{call: rapid.SampledFrom([]string{"operate_proc", "operate_proc_v2", "operate_proc_multi"}).Draw(t, "call"), keys: map[string]bool{}}
	v1, many := k.call == "operate_proc", 1
	if k.call == "operate_proc_multi" {
		many = rapid.IntRange(1, 4).Draw(t, "items")
	}
	bulk := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, procfleet.ChunkItems + 10}).Draw(t, "many more hosts")
	var items []any
	for range many {
		n := drawNamed(t, bulk)
		n.addKeys(k.keys, v1)
		items = append(items, n.members(rapid.SampledFrom([]int{0, 1, 2, 3, 4, 7, 8, 9, 42}).Draw(t, "op_type"), v1))
	}
	request := items[0]
	if k.call == "operate_proc_multi" {
		request = map[string]any{"proc_operate_req": items}
	}
	var err error
	if k.body, err = json.Marshal(request); err != nil {
		t.Fatal(err)
	}
	return k
}

// entries reads a result map. A duplicate key is an error.
func entries(t *rapid.T, d *testServer, call string, id any) (codes map[string]float64) {
	a := d.call(http.MethodPost, "/api/c/compapi/v2/gse/"+call+"/", fmt.Sprintf(`{"task_id":%q}`, id))
	data, _ := a.body["data"].(map[string]any)
	codes = map[string]float64{}
	for key, entry := range data {
		e, _ := entry.(map[string]any)
		code, _ := e["error_code"].(float64)
		codes[key] = code
		if code == 115 && (e["error_msg"] != "handling" || e["content"] != "") {
			t.Fatalf("%s: %v while it runs", key, e)
		}
	}
	for key := range codes {
		text, err := json.Marshal(key)
		if n := bytes.Count([]byte(a.text), append(text, ':')); err != nil || n != 1 {
			t.Fatalf("%s by %s: the key %q is there %d times", id, call, key, n)
		}
	}
	return codes
}

// finish records results for some items of a task.
func finish(t *rapid.T, store *stores.Bolt, id procfleet.TaskID) {
	task, err := store.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	batch := taskstore.Batch{Task: id}
	for _, item := range rapid.SliceOfDistinct(rapid.IntRange(0, task.Items-1), rapid.ID[int]).Draw(t, "finished") {
		batch.Results = append(batch.Results, procfleet.Result{
			Item: item, Code: procfleet.CodeSuccess, Reason: procfleet.ReasonSucceeded, Rank: procfleet.RankAgent, Message: "success",
		})
	}
	if _, err := store.Record(t.Context(), []taskstore.Batch{batch}); err != nil {
		t.Fatal(err)
	}
}

// The result map of a task has exactly the requested keys, from the first poll on, in every dialect
// and in every state of the items.
func TestResultsHaveExactlyTheKeysThatWereAskedFor(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	rapid.Check(t, func(t *rapid.T) {
		k := drawKeyed(t)
		made := d.call(http.MethodPost, "/api/c/compapi/v2/gse/"+k.call+"/", string(k.body))
		id, _ := esbID("task_id")(made).(string)
		if id == "" {
			t.Fatalf("%s: %d %s", k.body, made.status, made.text)
		}
		calls := []string{"get_proc_operate_result", "get_proc_operate_result_v2"}
		slices.SortFunc(calls, func(string, string) int { return rapid.IntRange(-1, 1).Draw(t, "which first") })
		wanted := slices.Sorted(maps.Keys(k.keys))
		for poll, call := range append(calls, calls...) {
			found := entries(t, d, call, id)
			if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, wanted) {
				t.Fatalf("%s of %s has the keys\n%q, want\n%q", call, k.body, got, wanted)
			}
			for key, code := range found {
				if poll == 0 && code != 115 {
					t.Fatalf("%s is %v at the first poll", key, code)
				}
			}
			if poll == 1 {
				finish(t, store, procfleet.TaskID(id))
			}
		}
	})
}
