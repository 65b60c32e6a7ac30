package dispatcher

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/procfleet/procfleet/dispatcher/apps"
	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/testenv"
)

// appsFile writes applications whose secret is "s3cret" and whose signing key
// is "k3y":
//
//	free     may do everything, and skips the user's login
//	plain    may do everything
//	biz      only for businesses 1 and 2
//	reader   only status
//	starter  only start
func appsFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "apps.yaml")
	hash := cheapHash("s3cret")
	err := apps.Update(path, func(f *apps.File) error {
		for _, a := range []struct {
			code, businesses, actions string
			skip                      bool
		}{{"free", "*", "*", true}, {"plain", "*", "*", false}, {"biz", "1,2", "*", true}, {"reader", "*", "status", true}, {"starter", "*", "start", true}} {
			businesses, err := apps.ParseBusinesses(strings.Split(a.businesses, ","))
			if err != nil {
				return err
			}
			actions, err := apps.ParseActions(strings.Split(a.actions, ","))
			if err != nil {
				return err
			}
			f.Put(apps.Application{Code: a.code, Secret: hash, SigningKey: "k3y", Businesses: businesses, Actions: actions, SkipUserAuth: a.skip})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cheapHash returns a hash of a secret that takes next to no time and memory to verify. A hash of the
// usual cost takes 19 MiB each time.
func cheapHash(secret string) string {
	salt := []byte("somesalt")
	key := argon2.IDKey([]byte(secret), salt, 1, 8, 1, 32)
	return "$argon2id$v=19$m=8,t=1,p=1$" + base64.RawStdEncoding.EncodeToString(salt) + "$" + base64.RawStdEncoding.EncodeToString(key)
}

func guarded(t *testing.T) Config {
	t.Helper()
	cfg := testConfig(t)
	cfg.AppsFile = appsFile(t)
	return cfg
}

// bkapi is the gateway's header.
func bkapi(members ...string) []string {
	given := map[string]string{}
	for i := 0; i+1 < len(members); i += 2 {
		given[members[i]] = members[i+1]
	}
	text, _ := json.Marshal(given)
	return []string{"X-Bkapi-Authorization", string(text)}
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

const (
	gseResultV1 = "/api/c/compapi/v2/gse/get_proc_operate_result/"
	jobBackend  = "/esb/api/v3/operate_process"
)

// refusal is an error in the form of one family of paths.
type refusal struct {
	status  int
	code    any // a number, or the code word of the native API
	message string
}

// is reports whether an answer is this failure in the form of its family.
func (want refusal) is(a answer) bool {
	body, code, message := a.body, a.body["code"], a.body["message"]
	if failure, native := body["error"].(map[string]any); native {
		code, message = failure["code"], failure["message"]
	} else if body["result"] != false || body["data"] != nil {
		return false
	}
	if number, is := want.code.(int); is && code != float64(number) || !is && code != want.code {
		return false
	}
	text, _ := message.(string)
	return a.status == want.status && strings.HasPrefix(text, want.message)
}

// TestEveryFamilyRefusesStrangersInItsOwnWords tests each authentication failure on each family of
// paths.
func TestEveryFamilyRefusesStrangersInItsOwnWords(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	esb := func(message string) refusal { return refusal{200, 1306000, message} }
	gateway := func(reason string) refusal { return refusal{400, 1640001, `Parameters error [reason="` + reason} }
	const (
		noCode    = "APP Code [bk_app_code] cannot be empty"
		noSecret  = "Signature and APP Secret cannot be empty at the same time"
		unknown   = "Invalid APP Code [bk_app_code=nobody], please confirm if the APP Code has been registered"
		wrong     = "APP Secret verification failed, please confirm if the APP Secret and APP Code [bk_app_code=free] match"
		noUser    = "User authentication failed, please provide a valid user identity, such as bk_token, bk_username"
		badToken  = "User authentication failed, please check if the bk_token is valid"
		incorrect = `bk_app_code or bk_app_secret is incorrect"]`
		gwNoUser  = "user authentication failed, please provide a valid user identity, such as bk_username, bk_token, access_token"
		gwToken   = "user authentication failed, please check if the bk_token is valid"
		badHeader = "Parameters error, request header X-Bkapi-Authorization is not a valid JSON format string"
	)
	families := []struct {
		name, path, body string
		needsUser        bool
	}{
		{"esb", v2Path, gseBody(2, "10.0.0.1"), true},
		{"job", jobPath, jobBody("10.0.0.1"), true},
		{"gateway", gatewayPath, gseBody(2, "10.0.0.1"), true},
		{"backend", backendPath, gseBody(2, "10.0.0.1"), false},
		{"jobbackend", jobBackend, jobBody("10.0.0.1"), false},
		{"native", nativePath, nativeBody("0:10.0.0.1"), false},
	}
	for _, c := range []struct {
		name    string
		header  []string
		user    bool // the row is of families that need a user
		esb     refusal
		gateway refusal
		native  refusal
	}{
		{"no caller", nil, false, esb(noCode), gateway(`app code cannot be empty"]`), refusal{401, "unauthenticated", "the request names no application"}},
		{"empty header", bkapi(), false, esb(noCode), gateway(`app code cannot be empty"]`), refusal{401, "unauthenticated", "the request names no application"}},
		{"no secret", bkapi("bk_app_code", "free"), false, esb(noSecret), gateway(`please provide bk_app_secret or bk_signature to verify app"]`), refusal{401, "unauthenticated", "the request has no secret"}},
		{"unknown", bkapi("bk_app_code", "nobody", "bk_app_secret", "s3cret"), false, esb(unknown), gateway(incorrect), refusal{401, "unauthenticated", "application nobody does not exist"}},
		{"wrong", bkapi("app_code", "free", "app_secret", "guess"), false, esb(wrong), gateway(incorrect), refusal{401, "unauthenticated", "the secret of application free is wrong"}},
		{"no user", bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret"), true, esb(noUser), gateway(gwNoUser), refusal{}},
		{"a user who is not believed", bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret", "bk_username", "ann"), true, esb(noUser), gateway(gwNoUser), refusal{}},
		{"an access token", bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret", "access_token", "x"), true, esb(noUser), gateway(gwNoUser), refusal{}},
		{"a token that nobody knows", bkapi("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_token", "x", "bk_username", "ann"), true, esb(badToken), gateway(gwToken), refusal{}},
		{"no JSON", []string{"X-Bkapi-Authorization", "free:s3cret"}, false, refusal{200, 1306406, badHeader}, gateway("request header X-Bkapi-Authorization is not a valid JSON"), refusal{400, "invalid_request", badHeader}},
		{"no object", []string{"X-Bkapi-Authorization", `"free"`}, false, refusal{200, 1306406, badHeader}, gateway("request header X-Bkapi-Authorization is not a valid JSON"), refusal{400, "invalid_request", badHeader}},
		{"no right", bkapi("bk_app_code", "starter", "bk_app_secret", "s3cret", "bk_username", "ann"), false, refusal{200, 1306403, "APP permission is insufficient, application starter lacks the action status"}, refusal{403, 1640301, "App has no permission to the resource ["}, refusal{403, "forbidden", "application starter lacks the action status"}},
	} {
		for _, f := range families {
			if c.user && !f.needsUser {
				continue
			}
			want := c.esb
			switch {
			case f.name == "gateway":
				want = c.gateway
			case f.name == "native":
				want = c.native
			case strings.HasPrefix(f.name, "job") && c.name == "no right":
				want = refusal{200, 9900403, "Permission is insufficient, application starter lacks the action status"}
			}
			a := d.call(http.MethodPost, f.path, f.body, c.header...)
			if !want.is(a) {
				t.Errorf("%s, %s: %d %s, want %+v", f.name, c.name, a.status, a.text, want)
			}
			if _, there := a.body["request_id"]; there && want.code == 1306406 {
				t.Errorf("%s, %s: request_id in %s", f.name, c.name, a.text)
			}
			if given := a.header.Get("WWW-Authenticate"); (a.status == http.StatusUnauthorized) != strings.HasPrefix(given, "Bearer") {
				t.Errorf("%s, %s: WWW-Authenticate %q with status %d", f.name, c.name, given, a.status)
			}
			if _, there := a.body["permission"]; there != (want.code == 9900403) {
				t.Errorf("%s, %s: permission in %s", f.name, c.name, a.text)
			}
		}
	}
	if n := d.tasks(); n != 0 {
		t.Errorf("%d tasks were made", n)
	}
}

// Every family of paths accepts credentials in the places where its clients send them.
func TestEveryFamilyTakesCredentialsWhereItsClientsPutThem(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.TrustedESB = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	with := func(body, members string) string { return "{" + members + "," + body[1:] }
	const mine = `"bk_app_code":"free","bk_app_secret":"s3cret","bk_username":"ann"`
	header := bkapi("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_username", "ann")
	short := bkapi("app_code", "free", "app_secret", "s3cret", "username", "ann")
	esb := []string{"Bk-App-Code", "free", "Bk-Username", "ann"}
	for _, c := range []struct {
		name, path, body string
		header           []string
		id               func(answer) any
	}{
		{"body", v2Path, with(gseBody(2, "10.0.0.1"), mine), nil, esbID("task_id")},
		{"short names", v2Path, with(gseBody(2, "10.0.0.1"), `"app_code":"free","app_secret":"s3cret","username":"ann"`), nil, esbID("task_id")},
		{"query", v2Path + "?bk_app_code=free&bk_app_secret=s3cret&bk_username=ann", gseBody(2, "10.0.0.1"), nil, esbID("task_id")},
		{"header", v2Path, gseBody(2, "10.0.0.1"), header, esbID("task_id")},
		{"header before body", v2Path, with(gseBody(2, "10.0.0.1"), `"bk_app_code":"nobody","bk_app_secret":"x"`), header, esbID("task_id")},
		{"job", jobPath, with(jobBody("10.0.0.1"), mine), nil, esbID("bk_gse_taskid")},
		{"gateway", gatewayPath, gseBody(2, "10.0.0.1"), short, esbID("task_id")},
		{"backend, by an ESB", backendPath, gseBody(2, "10.0.0.1"), esb, esbID("task_id")},
		{"backend, by itself", backendPath, gseBody(2, "10.0.0.1"), bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret"), esbID("task_id")},
		{"job backend, by an ESB", jobBackend, jobBody("10.0.0.1"), esb, esbID("bk_gse_taskid")},
		{"native", nativePath, nativeBody("0:10.0.0.1"), bearer("plain.s3cret"), func(a answer) any { return a.body["id"] }},
		{"native, by the gateway's header", nativePath, nativeBody("0:10.0.0.1"), bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret"), func(a answer) any { return a.body["id"] }},
	} {
		a := d.call(http.MethodPost, c.path, c.body, c.header...)
		if id, _ := c.id(a).(string); !strings.HasPrefix(id, "GSETASK:") {
			t.Errorf("%s: %d %s", c.name, a.status, a.text)
		}
	}
	// The ESB reads the body before it authenticates the caller; the gateway authenticates first.
	if a := d.call(http.MethodPost, v2Path, "{x"); !(refusal{200, 1306000, "Request JSON string is wrong in format, which cannot be analyzed."}).is(a) {
		t.Errorf("no JSON at the ESB: %s", a.text)
	}
	if a := d.call(http.MethodPost, gatewayPath, "{x"); a.status != http.StatusBadRequest || !strings.Contains(a.text, "app code cannot be empty") {
		t.Errorf("no JSON at the gateway: %d %s", a.status, a.text)
	}
	if a := d.call(http.MethodPost, v2Path, "bk_app_code=free&bk_app_secret=s3cret&bk_username=ann&op_type=2"); a.body["code"] != 1306406.0 {
		t.Errorf("a form with credentials is no operation: %s", a.text)
	}
	for _, body := range []string{"op_type=2", "[" + with(gseBody(2, "10.0.0.1"), mine) + "]", ""} {
		if a := d.call(http.MethodPost, v2Path, body); !(refusal{200, 1306000, "APP Code [bk_app_code] cannot be empty"}).is(a) {
			t.Errorf("a form that names nobody, %q: %s", body, a.text)
		}
	}
	// If the header is present, credentials in the body are ignored.
	a := d.call(http.MethodPost, v2Path, with(gseBody(2, "10.0.0.1"), mine), bkapi("bk_app_code", "free")...)
	if !(refusal{200, 1306000, "Signature and APP Secret"}).is(a) {
		t.Errorf("half the credentials in the header, the rest in the body: %s", a.text)
	}
	// These paths need no credentials.
	for _, path := range []string{"/healthz", "/readyz"} {
		if a := d.call(http.MethodGet, path, ""); a.status != http.StatusOK {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}

func TestAnESBIsBelievedOnlyFromWhereItIs(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.TrustedESB = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	a := d.call(http.MethodPost, backendPath, gseBody(2, "10.0.0.1"), "Bk-App-Code", "free", "Bk-Username", "ann")
	if !(refusal{200, 1306000, "Signature and APP Secret cannot be empty at the same time: Bk-App-Code without a secret is accepted only"}).is(a) {
		t.Error(a.text)
	}
	// Nor on any other path, wherever it is.
	cfg.TrustedESB = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	d = startServer(t, cfg, openStore(t), &fakeQueue{})
	for _, path := range []string{v2Path, gatewayPath, nativePath} {
		a := d.call(http.MethodPost, path, gseBody(2, "10.0.0.1"), "Bk-App-Code", "free")
		if !strings.Contains(a.text, "cannot be empty") && !strings.Contains(a.text, "the request names no application") {
			t.Errorf("%s: %s", path, a.text)
		}
	}
	a = d.call(http.MethodPost, backendPath, gseBody(2, "10.0.0.1"), "Bk-App-Code", "nobody")
	if !(refusal{200, 1306000, "Invalid APP Code [bk_app_code=nobody]"}).is(a) {
		t.Error(a.text)
	}
}

// TestOnlyATrustedESBNamesTheApplicationInTheBodyAlone: an older ESB passes no
// secret on to Job. From any other address bk_app_code without a secret would
// let each caller act as each application.
func TestOnlyATrustedESBNamesTheApplicationInTheBodyAlone(t *testing.T) {
	t.Parallel()
	body := `{"bk_app_code":"free","operator":"ann",` + oldJobBody(jobBody("10.0.0.1"))[1:]
	for network, trusted := range map[string]bool{"10.0.0.0/8": false, "127.0.0.0/8": true} {
		cfg := guarded(t)
		cfg.TrustedESB = []netip.Prefix{netip.MustParsePrefix(network)}
		d := startServer(t, cfg, openStore(t), &fakeQueue{})
		for _, call := range []string{"operate_process", "operate_proc", "operate_process/"} {
			a := d.call(http.MethodPost, "/api/v2/"+call, body, "X-Forwarded-For", "10.0.0.1", "X-Real-IP", "10.0.0.1")
			id, _ := esbID("bk_gse_taskid")(a).(string)
			if strings.HasPrefix(id, "GSETASK:") != trusted || (a.body["result"] == true) != trusted {
				t.Errorf("%s, trusted %s: %d %s", call, network, a.status, a.text)
			}
			if !trusted && !strings.Contains(a.text, "is accepted only from an address of --trusted-esb") {
				t.Errorf("%s: %s", call, a.text)
			}
		}
		a := d.call(http.MethodPost, "/api/v2/get_proc_result", `{"bk_app_code":"free","bk_biz_id":1,"params":{"bk_gse_taskid":"GSETASK:1:1"}}`)
		if refused := strings.Contains(a.text, "--trusted-esb"); refused == trusted {
			t.Errorf("get_proc_result, trusted %s: %s", network, a.text)
		}
		before := d.tasks()
		for _, path := range []string{jobBackend, jobPath, backendPath, gatewayPath} { // these have other bodies and other ESBs
			if a := d.call(http.MethodPost, path, body); a.body["result"] != false || a.body["data"] != nil {
				t.Errorf("%s, trusted %s: %d %s", path, network, a.status, a.text)
			}
		}
		if want := map[bool]int{true: 3}[trusted]; before != want || d.tasks() != want {
			t.Errorf("trusted %s: %d tasks and then %d, want %d", network, before, d.tasks(), want)
		}
	}
}

// signedPath is a path with the parameters of a signature, as the ESB's
// clients make it.
func signedPath(path, body, key string, at time.Time, nonce string) string {
	params := []string{"bk_app_code=free", "bk_nonce=" + nonce, "bk_timestamp=" + strconv.FormatInt(at.Unix(), 10), "bk_username=ann b"}
	mac := hmac.New(sha1.New, []byte(key))
	fmt.Fprintf(mac, "POST%s?%s&data=%s", path, strings.Join(params, "&"), body)
	query := url.Values{"bk_signature": {base64.StdEncoding.EncodeToString(mac.Sum(nil))}}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		query.Set(name, value)
	}
	return path + "?" + query.Encode()
}

func TestASignatureTakesThePlaceOfTheSecret(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	body, now := gseBody(2, "10.0.0.1"), time.Now()
	for _, path := range []string{v2Path, gatewayPath} {
		if a := d.call(http.MethodPost, signedPath(path, body, "k3y", now, "7"), body); a.body["result"] != true {
			t.Errorf("%s: %s", path, a.text)
		}
	}
	const refused = "Signature [bk_signature] verification failed, please provide valid parameters and signature"
	for name, c := range map[string]struct{ path, body, want string }{
		"another key":   {signedPath(v2Path, body, "key", now, "7"), body, refused},
		"another body":  {signedPath(v2Path, body, "k3y", now, "7"), gseBody(2, "10.0.0.2"), refused},
		"another path":  {strings.Replace(signedPath(v2Path, body, "k3y", now, "7"), "/api/c", "/c", 1), body, refused},
		"another query": {signedPath(v2Path, body, "k3y", now, "7") + "&x=y", body, refused},
		"too old":       {signedPath(v2Path, body, "k3y", now.Add(-302*time.Second), "7"), body, "it has expired"},
		"too new":       {signedPath(v2Path, body, "k3y", now.Add(400*time.Second), "7"), body, "it is in the future"},
		"no nonce":      {signedPath(v2Path, body, "k3y", now, ""), body, "Parameter bk_nonce is illegal, it must be a positive integer"},
		"nonce 0":       {signedPath(v2Path, body, "k3y", now, "0"), body, "Parameter bk_nonce is illegal, it must be a positive integer"},
	} {
		a := d.call(http.MethodPost, c.path, c.body)
		if !(refusal{200, 1306000, refused}).is(a) || !strings.Contains(a.text, c.want) {
			t.Errorf("%s: %s", name, a.text)
		}
	}
}

// TestASignedRequestCannotBeMadeIntoAnother changes signed requests in ways that keep the signed text.
// The dispatcher must reject them.
func TestASignedRequestCannotBeMadeIntoAnother(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	body, now := gseBody(2, "10.0.0.1"), time.Now()
	old := now.Add(-time.Hour)
	expired := signedPath(v2Path, body, "k3y", old, "7")
	stamp := strconv.FormatInt(now.Unix(), 10)
	for name, c := range map[string]struct{ path, want string }{
		"a fresh time beside the signed one":    {strings.Replace(expired, "?", "?bk_timestamp="+stamp+"&", 1), "each parameter once"},
		"a fresh time behind the signed one":    {expired + "&bk_timestamp=" + stamp, "each parameter once"},
		"another user before the signed one":    {strings.Replace(signedPath(v2Path, body, "k3y", now, "8"), "?", "?bk_username=root&", 1), "each parameter once"},
		"a parameter moved into the one before": {strings.Replace(signedPath(v2Path, body, "k3y", now, "9"), "&bk_nonce=", "%26bk_nonce%3D", 1), "no & in its parameters"},
		"data beside the body":                  {signedPath(v2Path, body, "k3y", now, "10") + "&data=x", "its data in the body"},
	} {
		if a := d.call(http.MethodPost, c.path, body); a.body["code"] != 1306000.0 || !strings.Contains(a.text, c.want) {
			t.Errorf("%s: %s", name, a.text)
		}
	}
	if n := d.tasks(); n != 0 {
		t.Errorf("%d tasks were made", n)
	}
}

func TestASignedRequestThatIsOverheardIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	body, now := gseBody(2, "10.0.0.1"), time.Now()
	path := signedPath(v2Path, body, "k3y", now, "7")
	if a := d.call(http.MethodPost, path, body); a.body["result"] != true {
		t.Fatal(a.text)
	}
	if a := d.call(http.MethodPost, path, body); a.body["code"] != 1306000.0 || !strings.Contains(a.text, "this signature was used before") {
		t.Errorf("the same again: %s", a.text)
	}
	if a := d.call(http.MethodPost, signedPath(v2Path, body, "k3y", now, "8"), body); a.body["result"] != true {
		t.Errorf("with a nonce of its own: %s", a.text)
	}
	if n := d.tasks(); n != 2 {
		t.Errorf("%d tasks, want 2", n)
	}
}

func TestALimitedApplicationDoesOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	native := func(business, action string) string {
		return fmt.Sprintf(`{"action":%q,"business":%q,"process":{"namespace":"ns","name":"web","proc_name":"nginx","setup_path":"/srv","control":{"start":"./start","stop":"./stop","kill":"./kill"}},"hosts":["0:10.0.0.1"]}`, action, business)
	}
	for _, c := range []struct {
		who, method, path, body string
		status                  int
	}{
		{"biz", "POST", nativePath, native("1", "status"), 201},
		{"biz", "POST", nativePath, native("3", "status"), 403},
		{"biz", "POST", nativePath, native("", "status"), 403},
		{"biz", "POST", nativePath, native("biz_set:1", "status"), 403},
		{"free", "POST", nativePath, native("biz_set:1", "kill"), 201},
		{"starter", "POST", nativePath, native("1", "start"), 201},
		{"starter", "POST", nativePath, native("1", "stop"), 403},
		{"starter", "GET", nativePath, "", 403},
		{"reader", "GET", nativePath, "", 200},
		{"reader", "GET", "/v1/hosts", "", 200},
		{"biz", "GET", "/v1/hosts", "", 403},
		{"biz", "GET", nativePath, "", 200},
	} {
		if a := d.call(c.method, c.path, c.body, bearer(c.who+".s3cret")...); a.status != c.status {
			t.Errorf("%s %s %s %s: %d %s, want %d", c.who, c.method, c.path, c.body, a.status, a.text, c.status)
		}
	}
	// Every operation of a submission counts.
	two := `{"operations":[{"action":"start","process":{"namespace":"n","name":"a","proc_name":"a","setup_path":"/srv","control":{"start":"./a"}},"hosts":["0:10.0.0.1"]},
		{"action":"stop","process":{"namespace":"n","name":"b","proc_name":"b","setup_path":"/srv","control":{"stop":"./b"}},"hosts":["0:10.0.0.1"]}]}`
	if a := d.call(http.MethodPost, nativePath, two, bearer("starter.s3cret")...); a.status != http.StatusForbidden || !strings.Contains(a.text, "lacks the action stop") {
		t.Errorf("start and stop by an application that may start: %d %s", a.status, a.text)
	}
	// GSE's calls are for no business, Job's for one.
	biz := bkapi("bk_app_code", "biz", "bk_app_secret", "s3cret", "bk_username", "ann")
	if a := d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1"), biz...); !(refusal{200, 1306403, "APP permission is insufficient, application biz is limited to some businesses"}).is(a) {
		t.Error(a.text)
	}
	if a := d.call(http.MethodPost, jobPath, jobBody("10.0.0.1"), biz...); a.body["result"] != true {
		t.Error(a.text)
	}
	a := d.call(http.MethodPost, jobPath, strings.Replace(jobBody("10.0.0.1"), `"bk_biz_id":1`, `"bk_biz_id":5`, 1), biz...)
	permission, _ := json.Marshal(a.body["permission"])
	if !(refusal{200, 9900403, "Permission is insufficient, application biz may not act for business 5"}).is(a) || !strings.Contains(string(permission), `"id":"5"`) || !strings.Contains(string(permission), `"id":"status"`) {
		t.Error(a.text)
	}
	a = d.call(http.MethodPost, jobPath, strings.Replace(jobBody("10.0.0.1"), `"bk_biz_id":1`, `"bk_scope_type":"biz_set","bk_scope_id":"1"`, 1), biz...)
	if !(refusal{200, 9900403, "Permission is insufficient, application biz may not act for business biz_set:1"}).is(a) {
		t.Error(a.text)
	}
}

// TestEveryCallRefusesAnApplicationThatMayNothingOfIt sends a request to every call of every dialect,
// by an application without the right. No call may accept it.
func TestEveryCallRefusesAnApplicationThatMayNothingOfIt(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.AppsFile = filepath.Join(t.TempDir(), "apps.yaml")
	for _, action := range []string{apps.Catalogue, apps.Reading} { // which are all that the application of the name may
		only, err := apps.ParseActions([]string{action})
		if err != nil {
			t.Fatal(err)
		}
		err = apps.Update(cfg.AppsFile, func(f *apps.File) error {
			f.Put(apps.Application{Code: action, Secret: cheapHash("s3cret"), Businesses: apps.NoLimit(), Actions: only, SkipUserAuth: true})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	calls := 0
	for _, dia := range dialect.All() {
		for _, family := range dia.Reached() {
			for _, call := range family.Calls {
				if actionOf(t, call.Endpoint) == "" {
					continue // the actions of the task count; see TestEveryEndpointRefusesEveryCallerWithoutTheRight
				}
				who := apps.Catalogue
				if actionOf(t, call.Endpoint) == apps.Catalogue {
					who = apps.Reading
				}
				header := append(bkapi("bk_app_code", who, "bk_app_secret", "s3cret", "bk_username", "ann"), cmdbHeaders()...)
				path := strings.NewReplacer("{$}", "", "{id}", "GSETASK:20260102030405:6", "{stage}", "prod", "{version}", "v3").Replace(call.Paths[0])
				path = wildcardNames.ReplaceAllString(path, "7")
				for _, method := range call.Methods {
					calls++
					a := d.call(method, path, "{}", header...)
					code := a.body["code"] // of published calls whose status is 200
					if a.status != http.StatusForbidden && code != 1306403.0 && code != 9900403.0 && a.body["bk_error_code"] != 9900403.0 {
						t.Errorf("%s %s: %d %s", method, path, a.status, a.text)
					}
				}
			}
		}
	}
	if calls < 10 {
		t.Errorf("only %d calls were tried", calls)
	}
}

func TestATaskIsReadByWhoMadeItAndWhoActsForItsBusiness(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	open := testConfig(t)
	store := openStore(t)
	d, before := startServer(t, cfg, store, &fakeQueue{}), startServer(t, open, store, &fakeQueue{})
	post := func(who, business string) string {
		t.Helper()
		body := fmt.Sprintf(`{"action":"status","business":%q,"process":{"namespace":"ns","name":"web","proc_name":"nginx"},"hosts":["0:10.0.0.1"]}`, business)
		a := before.call(http.MethodPost, nativePath, body, bearer(who+".x")...)
		id, _ := a.body["id"].(string)
		if id == "" {
			t.Fatal(a.text)
		}
		return id
	}
	mine, ofOne, ofNone, ofThree := post("biz", "3"), post("other", "1"), post("other", ""), post("other", "3")
	biz, esb := bearer("biz.s3cret"), bkapi("bk_app_code", "biz", "bk_app_secret", "s3cret", "bk_username", "ann")
	const none = "GSETASK:20260102030405:6"
	requestID := regexp.MustCompile(`[0-9a-f]{32}`)
	// asIfThereWereNone reports whether the response for a task equals the response for a task
	// that does not exist.
	asIfThereWereNone := func(id, method, path, body string, header []string) bool {
		t.Helper()
		var texts [2]string
		for n, task := range []string{id, none} {
			a := d.call(method, strings.ReplaceAll(path, "ID", task), strings.ReplaceAll(body, "ID", task), header...)
			texts[n] = fmt.Sprint(a.status, " ", requestID.ReplaceAllString(strings.ReplaceAll(a.text, task, "ID"), "REQUEST"))
		}
		if texts[0] != texts[1] {
			t.Errorf("%s of another's task: %s\nof none: %s", path, texts[0], texts[1])
		}
		return strings.Contains(texts[0], "no such task")
	}
	for id, sees := range map[string]bool{mine: true, ofOne: true, ofNone: false, ofThree: false} {
		want := http.StatusNotFound
		if sees {
			want = http.StatusOK
		}
		for _, path := range []string{nativePath + "/" + id, nativePath + "/" + id + "/results"} {
			if a := d.call(http.MethodGet, path, "", biz...); a.status != want {
				t.Errorf("%s: %d %s, want %d", path, a.status, a.text, want)
			}
			if a := d.call(http.MethodGet, path, "", bearer("plain.s3cret")...); a.status != http.StatusOK {
				t.Errorf("%s by one who may everything: %d", path, a.status)
			}
		}
		if !sees {
			if a := d.call(http.MethodGet, nativePath+"/"+id+"/events", "", biz...); a.status != want {
				t.Errorf("events of %s: %d %s", id, a.status, a.text)
			}
		}
		for path, body := range map[string]string{
			resultPath: `{"task_id":"ID"}`, gseResultV1: `{"task_id":"ID"}`, "/procapi/v2/proc/get_proc_operate_result_v2": `{"task_id":"ID"}`,
			"/api/bk-gse/prod/api/v2/proc/get_proc_operate_result_v2/": `{"task_id":"ID"}`, jobGetPath: `{"bk_biz_id":1,"bk_gse_taskid":"ID"}`,
		} {
			if !sees {
				asIfThereWereNone(id, http.MethodPost, path, body, esb)
				continue
			}
			if a := d.call(http.MethodPost, path, strings.ReplaceAll(body, "ID", id), esb...); a.status == http.StatusOK && a.body["result"] != true {
				t.Errorf("%s of %s: %s", path, id, a.text)
			}
		}
		for _, path := range []string{"", "/results", "/results?cursor=x", "/events"} {
			if !sees && !asIfThereWereNone(id, http.MethodGet, nativePath+"/ID"+path, "", biz) {
				t.Errorf("%s of %s is not refused", path, id)
			}
		}
	}
	// Pages of any size contain each visible task exactly once.
	for _, limit := range []int{1, 2, 100} {
		var found []string
		for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
			a := d.call(http.MethodGet, fmt.Sprintf("%s?limit=%d&cursor=%s", nativePath, limit, cursor), "", biz...)
			list, _ := a.body["tasks"].([]any)
			for _, each := range list {
				found = append(found, fmt.Sprint(each.(map[string]any)["id"]))
			}
			if cursor, _ = a.body["next"].(string); len(list) > limit || pages > 10 {
				t.Fatalf("limit %d: %s", limit, a.text)
			}
		}
		if strings.Join(found, " ") != ofOne+" "+mine {
			t.Errorf("limit %d: found %v, want %v", limit, found, []string{ofOne, mine})
		}
	}
}

// TestWhoIsRefusedForItsHeadersIsRefusedBeforeItsBody sends only headers with
// "Expect: 100-continue". The dispatcher must reject the request without reading the body.
func TestWhoIsRefusedForItsHeadersIsRefusedBeforeItsBody(t *testing.T) {
	t.Parallel()
	d := startServer(t, guarded(t), openStore(t), &fakeQueue{})
	for path, header := range map[string]string{
		nativePath:  "Authorization: Bearer free.guess",
		backendPath: "Bk-App-Code: free",
		v2Path:      `X-Bkapi-Authorization: {"bk_app_code":"free","bk_app_secret":"guess"}`,
		gatewayPath: `X-Bkapi-Authorization: {"bk_app_code":"free","bk_app_secret":"s3cret"}`,
	} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(d.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t, conn)
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 40000000\r\n%s\r\n\r\n", path, header)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // the connection is closed as well
		if resp.StatusCode == http.StatusContinue || err != nil || strings.Contains(string(text), "GSETASK") {
			t.Errorf("%s: %d %s %v", path, resp.StatusCode, text, err)
		}
	}
}

// readNotice calls read before each read of a body.
type readNotice struct {
	io.ReadCloser
	read func()
}

func (b *readNotice) Read(p []byte) (int, error) {
	b.read()
	return b.ReadCloser.Read(p)
}

func TestStrangersWhoSendBigBodiesSlowlyKeepNoOthersWaiting(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.Limits.BigBodies = 1
	dispatcher, err := New(cfg, openStore(t), &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	reads := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &readNotice{r.Body, sync.OnceFunc(func() {
			select {
			case reads <- struct{}{}:
			default:
			}
		})}
		dispatcher.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	d := &testServer{t: t, url: server.URL}
	body, held := io.Pipe()
	stranger := make(chan struct{})
	go func() {
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, d.url+v2Path, body)
		if err == nil {
			var resp *http.Response
			if resp, err = http.DefaultClient.Do(r); err == nil {
				err = resp.Body.Close()
			}
		}
		if err != nil {
			t.Error(err)
		}
		close(stranger)
	}()
	<-reads
	header := bkapi("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_username", "ann")
	big := strings.Repeat(" ", bigBody) + gseBody(2, "10.0.0.1")
	if a := d.call(http.MethodPost, v2Path, big, header...); a.body["result"] != true {
		t.Errorf("a big body of a caller who is known: %s", a.text)
	}
	if a := d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1")); a.body["code"] != 1306000.0 {
		t.Errorf("a small body of a stranger: %s", a.text)
	}
	_ = held.Close()
	<-stranger
}

// An application receives no more events of its watches after it was removed, or lost the right
// to read or its secret. The watches of other applications continue.
func TestAnApplicationThatIsRemovedHearsNoMoreOfTasksThatItWatches(t *testing.T) {
	t.Parallel()
	store, hints := &scriptedStore{task: aTask(1)}, &scriptedHints{}
	cfg := guarded(t)
	cfg.Hints = hints
	d := openWindow(t, cfg, store, nil)
	watchers := map[string]*viewer{}
	for _, who := range []string{"free", "plain", "reader"} {
		watchers[who] = d.view(aTask(0).ID, bearer(who+".s3cret")...)
		watchers[who].want("snapshot", 1)
	}
	testenv.Eventually(t, patience, func() bool { return hints.followers() == 1 }, "the task to be followed")
	err := apps.Update(cfg.AppsFile, func(f *apps.File) error {
		f.Remove("plain")
		for _, a := range f.Applications() {
			if a.Code == "reader" {
				a.Actions, _ = apps.ParseActions([]string{"start"})
				f.Put(a)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := d.authenticator.Refresh(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	store.set(aTask(4))
	hints.hint(false)
	watchers["free"].want("progress", 4)
	watchers["plain"].wantEnd()
	watchers["reader"].wantEnd()
	err = apps.Update(cfg.AppsFile, func(f *apps.File) error {
		for _, a := range f.Applications() {
			a.Secret = cheapHash("new")
			f.Put(a)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := d.authenticator.Refresh(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	store.set(aTask(5))
	hints.hint(false)
	watchers["free"].wantEnd()
}

// TestIdempotencyKeysAreEachApplicationsOwn verifies, over HTTP and NATS, that two applications can
// use one idempotency key: the second one creates a task of its own, receives no data of the other
// task, and is not rejected for a different body.
func TestIdempotencyKeysAreEachApplicationsOwn(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	p := produce(t, guarded(t), store)
	d := startServer(t, guarded(t), store, p.Bus)
	made := map[string]string{} // application by task
	for application, host := range map[string]string{"free": "0:10.0.0.1", "plain": "0:10.0.0.2"} {
		header := append(bearer(application+".s3cret"), keyHeader, "k", requestHeader, "k")
		byHTTP, byNATS := d.call(http.MethodPost, nativePath, nativeBody(host), header...), p.ask(nativeBody(host), header...)
		id := byNATS.Header.Get(taskHeader)
		if byHTTP.status != http.StatusCreated || byHTTP.body["id"] != id {
			t.Errorf("%s made task %v (%d) by HTTP and %q by NATS", application, byHTTP.body["id"], byHTTP.status, id)
		}
		if other, taken := made[id]; taken {
			t.Errorf("%s and %s have one task", application, other)
		}
		made[id] = application
	}
}

func TestSubmissionsOverNATSNeedAnApplicationToo(t *testing.T) {
	t.Parallel()
	p := produce(t, guarded(t), openStore(t))
	with := func(body, members string) string { return "{" + members + "," + body[1:] }
	for _, c := range []struct {
		name, body string
		header     []string
		status     string
		text       string
	}{
		{"no caller", nativeBody("0:10.0.0.1"), nil, "401", "the request names no application"},
		{"wrong", nativeBody("0:10.0.0.1"), bearer("free.guess"), "401", "the secret of application free is wrong"},
		{"no right", nativeBody("0:10.0.0.1"), bearer("starter.s3cret"), "403", "lacks the action status"},
		{"good", nativeBody("0:10.0.0.1"), bearer("plain.s3cret"), "201", "GSETASK:"},
		{"GSE, nobody", gseBody(2, "10.0.0.1"), []string{"Procfleet-Dialect", "gse.operate_proc_v2"}, "200", `"code":1306000`},
		{"GSE, good", with(gseBody(2, "10.0.0.1"), `"bk_app_code":"free","bk_app_secret":"s3cret","bk_username":"ann"`), []string{"Procfleet-Dialect", "gse.operate_proc_v2"}, "200", "GSETASK:"},
		{"GSE, an ESB", gseBody(2, "10.0.0.1"), []string{"Procfleet-Dialect", "gse.operate_proc_v2", "Bk-App-Code", "free"}, "200", `"code":1306000`},
	} {
		p.publish(c.body, append(c.header, "Procfleet-Reply-To", "answers.x")...)
		r := p.reply()
		if r.Header.Get("Procfleet-Status") != c.status || !strings.Contains(string(r.Data), c.text) {
			t.Errorf("%s: %v %s", c.name, r.Header, r.Data)
		}
	}
}

func TestWhatFailedIsKeptWithoutTheSecretsInItsHeaders(t *testing.T) {
	t.Parallel()
	p := produce(t, guarded(t), openStore(t))
	header := append(bearer("starter.s3cret"), "authorization", "Bearer starter.s3cret", "X-Kept", "yes", "Procfleet-Reply-To", "answers.x")
	p.publish(nativeBody("0:10.0.0.1"), append(header, bkapi("bk_app_code", "starter", "bk_app_secret", "s3cret")...)...)
	p.reply()
	failed := p.failed(1)
	for name, values := range failed.Header {
		if strings.Contains(strings.Join(values, " "), "s3cret") {
			t.Errorf("%s is kept: %q", name, values)
		}
	}
	if failed.Header.Get("X-Kept") != "yes" {
		t.Errorf("other headers are not kept: %v", failed.Header)
	}
}

// loginServer responds like BlueKing's login server. The token "tok-<user>" belongs to <user>.
func loginServer(t *testing.T) (server *httptest.Server, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		token := r.URL.Query().Get("bk_token")
		user, ok := strings.CutPrefix(token, "tok-")
		switch {
		case r.Method != http.MethodGet || r.URL.Path != "/accounts/is_login/":
			http.NotFound(w, r)
		case token == "page":
			http.Redirect(w, r, "/login", http.StatusFound)
		case token == "html":
			fmt.Fprint(w, "<html>")
		case !ok:
			fmt.Fprint(w, `{"result":false,"message":"not logged in","data":""}`)
		case user == "old":
			fmt.Fprint(w, `{"result":true,"data":{"username":"old"}}`)
		default:
			fmt.Fprintf(w, `{"result":true,"code":0,"data":{"bk_username":%q}}`, user)
		}
	}))
	t.Cleanup(server.Close)
	return server, asked
}

func TestABkTokenCountsAsTheLoginServerSays(t *testing.T) {
	t.Parallel()
	server, asked := loginServer(t)
	cfg := guarded(t)
	cfg.LoginURL = server.URL + "/"
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	call := func(token string) answer {
		return d.call(http.MethodPost, v2Path, gseBody(2, "10.0.0.1"), bkapi("bk_app_code", "plain", "bk_app_secret", "s3cret", "bk_token", token)...)
	}
	for _, token := range []string{"tok-ann", "tok-old"} {
		for range 3 {
			if a := call(token); a.body["result"] != true {
				t.Errorf("%s: %s", token, a.text)
			}
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the login server was asked %d times about two tokens", n)
	}
	for token, why := range map[string]string{
		"stolen": "please check if the bk_token is valid\"", "page": "responded 302 Found", "html": "without a JSON object", strings.Repeat("x", 5000): "longer than",
	} {
		for range 2 {
			a := call(token)
			if !(refusal{200, 1306000, "User authentication failed, please check if the bk_token is valid"}).is(a) || !strings.Contains(a.text, why) {
				t.Errorf("%.10s: %s", token, a.text)
			}
		}
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("the login server was asked %d times about five tokens", n)
	}
	server.Close()
	a := call("tok-late")
	if !strings.Contains(a.text, "the login server is unavailable") || strings.Contains(a.text, "tok-late") {
		t.Errorf("without the login server: %s", a.text)
	}
	if a := call("tok-ann"); a.body["result"] != true {
		t.Errorf("a token that is remembered: %s", a.text)
	}
}
