//go:build linux

package e2e

import (
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// application adds an application to the file apps and returns its token.
func (u *up) application(apps, code string, more ...string) string {
	u.t.Helper()
	cmd := exec.Command(u.program, append([]string{"app", "add", code, "--apps", apps}, more...)...)
	text, err := cmd.Output()
	if err != nil {
		u.t.Fatalf("app add %s: %v", code, err)
	}
	lines := strings.Fields(string(text))
	return code + "." + lines[len(lines)-1]
}

// TestViewersOfTheConsoleCanDoWhatTheirApplicationMay signs in with tokens of applications, and shows that
// the API and not the page decides what buttons do, that no script can read the token, and that open
// pages end with the application.
func TestViewersOfTheConsoleCanDoWhatTheirApplicationMay(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	apps := filepath.Join(t.TempDir(), "apps.yaml")
	admin := u.application(apps, "admin")
	reader := u.application(apps, "reader", "--actions", "status")
	u.args = append(u.args, "--apps", apps)
	u.start()
	procs := newProcs(t)
	p := procs.new("0:127.0.0.1", "secured")
	u.c.header = http.Header{"Authorization": {"Bearer " + admin}}
	u.c.register(p)
	id := u.c.submit(map[string]any{"action": "start", "process": p.waiting(), "hosts": []string{p.host}})

	b := newBrowser(t, u.c.url)
	b.open("tasks/" + id)
	b.waitFor("location.pathname === '/ui/signin'")
	signIn := func(token string) {
		t.Helper()
		b.fill("input[name=token]", token)
		b.click("main button")
	}
	signIn("reader.wrong")
	b.waitText("main [role=alert]", "does not accept this token")
	signIn(reader)
	b.waitText("h1", id) // back to the page that was requested
	if cookies := eval[string](b, "document.cookie"); cookies != "" {
		t.Errorf("a script can read %q", cookies)
	}
	if strings.Contains(eval[string](b, "document.documentElement.outerHTML"), strings.SplitN(reader, ".", 2)[1]) {
		t.Error("the page contains the secret")
	}

	b.click("#interrupt button")
	b.waitText("main [role=alert]", "lacks the action")
	u.c.header = http.Header{"Authorization": {"Bearer " + admin}}
	if got := u.c.task(id); got.State == "finished" {
		t.Fatal("a reader canceled a task")
	}

	b.open("tasks/" + id)
	b.waitText("header", "reader")
	if out, err := exec.Command(u.program, "app", "remove", "reader", "--apps", apps).CombinedOutput(); err != nil {
		t.Fatalf("app remove: %v: %s", err, out)
	}
	b.waitFor("location.pathname === '/ui/signin'") // by itself: the stream of the page has ended

	signIn(admin)
	b.waitText("h1", id)
	b.click("#interrupt button")
	b.waitText("#cancel", "canceled")
	b.click("header form[action='/ui/signout'] button")
	b.waitFor("location.pathname === '/ui/signin'")
	b.open("tasks")
	b.waitFor("location.pathname === '/ui/signin'")
}

// TestTheConsoleRefusesOtherPagesAndForgedSessions sends what a page of another origin, or a person who has
// changed a cookie, would send.
func TestTheConsoleRefusesOtherPagesAndForgedSessions(t *testing.T) {
	t.Parallel()
	u := newUp(t)
	apps := filepath.Join(t.TempDir(), "apps.yaml")
	token := u.application(apps, "admin")
	u.args = append(u.args, "--apps", apps)
	u.start()
	direct := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	type reply struct {
		StatusCode int
		Header     http.Header
		cookies    []*http.Cookie
	}
	send := func(method, path, form string, header http.Header) reply {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, u.c.url+"/ui/"+path, strings.NewReader(form))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := direct.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return reply{resp.StatusCode, resp.Header, resp.Cookies()}
	}
	signedIn := send(http.MethodPost, "signin", url.Values{"token": {token}, "next": {"https://evil.example/"}}.Encode(), http.Header{})
	if next := signedIn.Header.Get("Location"); strings.Contains(next, "evil") {
		t.Errorf("the sign-in leads to %s", next)
	}
	if len(signedIn.cookies) != 1 {
		t.Fatalf("cookies after the sign-in: %v", signedIn.cookies)
	}
	cookie := signedIn.cookies[0]
	if !cookie.Secure || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || !strings.HasPrefix(cookie.Name, "__Host-") || strings.Contains(cookie.Value, "admin") {
		t.Errorf("the cookie: %s", cookie)
	}
	as := func(value string) http.Header { return http.Header{"Cookie": {cookie.Name + "=" + value}} }
	if r := send(http.MethodGet, "tasks", "", as(cookie.Value)); r.StatusCode != http.StatusOK {
		t.Errorf("with the session: %d", r.StatusCode)
	}
	changed := []byte(cookie.Value)
	changed[len(changed)/2] ^= 1
	for what, value := range map[string]string{"changed": string(changed), "cut": cookie.Value[:20], "empty": "", "no session": "e30"} {
		if r := send(http.MethodGet, "tasks", "", as(value)); r.StatusCode != http.StatusSeeOther {
			t.Errorf("with a session that is %s: %d", what, r.StatusCode)
		}
	}
	foreign := as(cookie.Value)
	foreign.Set("Sec-Fetch-Site", "cross-site")
	foreign.Set("Origin", "https://evil.example")
	for _, path := range []string{"operate", "signin", "signout", "language", "hosts/0:127.0.0.1/freeze"} {
		if r := send(http.MethodPost, path, "", foreign.Clone()); r.StatusCode != http.StatusForbidden {
			t.Errorf("POST /ui/%s from another origin: %d", path, r.StatusCode)
		}
	}
	page := send(http.MethodGet, "tasks", "", as(cookie.Value))
	policy := page.Header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || page.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers of a page: %v", page.Header)
	}
}
