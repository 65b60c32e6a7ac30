package dispatcher

import (
	"fmt"
	"net/http"
	"regexp"
	"testing"
)

// Calls that create no task need the right to their action, too. GSE's calls name no business, so
// the application needs the right for all businesses.
func TestCallsWithoutATaskAreForThoseWhoMay(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	const (
		esb  = "/api/c/compapi/v2/gse/"
		body = `{"meta":{"namespace":"ns","name":"web"},"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}]}`
	)
	for call, want := range map[string]map[string]float64{
		"unregister_proc_info":   {"free": 0, "biz": 1306403, "reader": 1306403, "starter": 1306403},
		"get_proc_status":        {"free": 0, "biz": 1306403, "reader": 0, "starter": 1306403},
		"get_process_group_info": {"free": 0, "biz": 1306403, "reader": 0, "starter": 1306403},
		"get_agent_status":       {"free": 0, "biz": 1306403, "reader": 0, "starter": 1306403},
	} {
		for app, code := range want {
			header := bkapi("bk_app_code", app, "bk_app_secret", "s3cret", "bk_username", "admin")
			if got := d.call(http.MethodPost, esb+call+"/", body, header...); got.body["code"] != code {
				t.Errorf("%s by %s: %s, want code %v", call, app, got.text, code)
			}
		}
	}
}

// Freezing needs the right to register for the business. Freezes and agents' events are data of all
// businesses, so reading them needs the right for all.
func TestFreezesAndEventsAreForThoseWhoMay(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.Events, cfg.Broker = &fakeEvents{}, fakeBroker{}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	const (
		none = `{"namespace":"shop","ttl":"1m"}`
		lift = `{"namespace":"shop"}`
		of2  = `{"hosts":["0:10.0.0.1"],"ttl":"1m","business":"2"}`
	)
	for _, c := range []struct {
		method, path, body string
		want               map[string]int
	}{
		{http.MethodPut, "/v1/freezes", none, map[string]int{"free": 200, "biz": 403, "reader": 403, "starter": 403, "nobody": 401}},
		{http.MethodPut, "/v1/freezes", of2, map[string]int{"free": 200, "biz": 200, "reader": 403}},
		{http.MethodDelete, "/v1/freezes", lift, map[string]int{"free": 200, "biz": 403, "reader": 403}},
		{http.MethodGet, "/v1/freezes", "", map[string]int{"free": 200, "biz": 403, "reader": 200, "starter": 403}},
		{http.MethodGet, "/v1/events", "", map[string]int{"free": 200, "biz": 403, "reader": 200, "starter": 403}},
		{http.MethodGet, "/v1/health", "", map[string]int{"free": 200, "biz": 403, "reader": 200, "starter": 403}},
	} {
		for app, status := range c.want {
			if got := d.call(c.method, c.path, c.body, bearer(app+".s3cret")...); got.status != status {
				t.Errorf("%s %s %s by %s: %d %s, want %d", c.method, c.path, c.body, app, got.status, got.text, status)
			}
		}
	}
}

// Reading or changing a business's catalog needs the right for that business.
func TestTheCatalogueIsForThoseWhoMay(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	const one = `{"processes":[{"name":"web"}]}`
	for _, c := range []struct {
		method, path, body string
		want               map[string]int
	}{
		{http.MethodPut, "/v1/catalogue/2", one, map[string]int{"free": 200, "biz": 200, "reader": 403, "starter": 403, "nobody": 401}},
		{http.MethodPut, "/v1/catalogue/2?plan=true", one, map[string]int{"biz": 200, "reader": 403}},
		{http.MethodPut, "/v1/catalogue/3", one, map[string]int{"free": 200, "biz": 403}},
		{http.MethodPut, "/v1/catalogue/2?account=x", one, map[string]int{"free": 200, "biz": 403}},
		{http.MethodGet, "/v1/catalogue/2", "", map[string]int{"free": 200, "biz": 200, "reader": 200, "starter": 403}},
		{http.MethodGet, "/v1/catalogue/3", "", map[string]int{"biz": 403}},
		{http.MethodGet, "/v1/processes/2/1/status", "", map[string]int{"free": 200, "biz": 200, "reader": 200, "starter": 403}},
		{http.MethodGet, "/v1/processes/3/1/status", "", map[string]int{"biz": 403}},
	} {
		for app, status := range c.want {
			if got := d.call(c.method, c.path, c.body, bearer(app+".s3cret")...); got.status != status {
				t.Errorf("%s %s by %s: %d %s, want %d", c.method, c.path, app, got.status, got.text, status)
			}
		}
	}
}

// The error for registrations, freezes, groups and the catalog of other businesses is the same whether
// or not they exist.
func TestARefusalDoesNotSayWhatThereIs(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.Events, cfg.Broker = &fakeEvents{}, fakeBroker{}
	empty, full := startServer(t, cfg, openStore(t), &fakeQueue{}), startServer(t, cfg, openStore(t), &fakeQueue{})
	const (
		freeze  = `{"namespace":"shop","hosts":["0:10.0.0.1"],"ttl":"1m"}`
		shop    = `{"namespace":"shop","hosts":["0:10.0.0.1"]}`
		groups  = `{"namespace":"shop","groups":[{"id":"cache"}],"hosts":["0:10.0.0.1"]}`
		process = `{"process":{"namespace":"shop","name":"web","proc_name":"nginx","setup_path":"/srv"},"hosts":["0:10.0.0.1"]}`
		named   = `{"process":{"namespace":"shop","name":"web"},"hosts":["0:10.0.0.1"]}`
		gse     = `{"meta":{"namespace":"shop","name":"web"},"hosts":[{"ip":"10.0.0.1","bk_cloud_id":0}]}`
	)
	for _, c := range []struct{ method, path, body string }{
		{http.MethodPut, "/v1/registrations", process},
		{http.MethodPut, "/v1/freezes", freeze},
		{http.MethodPut, "/v1/groups", groups},
		{http.MethodPut, "/v1/catalogue/3", `{"processes":[{"name":"web"}]}`},
	} {
		if a := full.call(c.method, c.path, c.body, bearer("free.s3cret")...); a.status != http.StatusOK {
			t.Fatalf("%s %s: %d %s", c.method, c.path, a.status, a.text)
		}
	}
	native, esb := bearer("biz.s3cret"), bkapi("bk_app_code", "biz", "bk_app_secret", "s3cret", "bk_username", "admin")
	requestID := regexp.MustCompile(`[0-9a-f]{32}`)
	for _, c := range []struct {
		method, path, body string
		header             []string
	}{
		{http.MethodPost, "/v1/registrations", process, native},
		{http.MethodPost, "/v1/registrations/remove", named, native},
		{http.MethodGet, "/v1/processes?namespace=shop", "", native},
		{http.MethodPost, "/v1/processes/query", named, native},
		{http.MethodGet, "/v1/freezes", "", native},
		{http.MethodDelete, "/v1/freezes", shop, native},
		{http.MethodPut, "/v1/groups", groups, native},
		{http.MethodPost, "/v1/groups/query", shop, native},
		{http.MethodGet, "/v1/catalogue/3", "", native},
		{http.MethodGet, "/v1/processes/3/1/status", "", native},
		{http.MethodPost, "/api/c/compapi/v2/gse/unregister_proc_info/", gse, esb},
		{http.MethodPost, "/api/c/compapi/v2/gse/get_proc_status/", gse, esb},
		{http.MethodPost, "/api/c/compapi/v2/gse/get_process_group_info/", gse, esb},
	} {
		var texts [2]string
		for i, d := range []*testServer{empty, full} {
			a := d.call(c.method, c.path, c.body, c.header...)
			texts[i] = fmt.Sprint(a.status, " ", requestID.ReplaceAllString(a.text, "REQUEST"))
			if a.status != http.StatusForbidden && a.body["code"] != 1306403.0 {
				t.Errorf("%s %s is not refused: %s", c.method, c.path, texts[i])
			}
		}
		if texts[0] != texts[1] {
			t.Errorf("%s %s where there is nothing: %s\nwhere there is: %s", c.method, c.path, texts[0], texts[1])
		}
	}
}
