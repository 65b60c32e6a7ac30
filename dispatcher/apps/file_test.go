package apps

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// cheap begins hashes that cost next to nothing.
const cheap = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$"

func cheapHash(secret string) string { return hashWith(cost{memory: 8, passes: 1, threads: 1}, secret) }

func TestEveryMistakeOfAFileIsNamedWithItsPlace(t *testing.T) {
	t.Parallel()
	hash := Hash("s")
	for _, c := range []struct{ name, text, want string }{
		{"not YAML", "applications: [", "a.yaml: "},
		{"a list", "- x", "a.yaml:1: must contain one member: applications"},
		{"another name", "apps: {}", "a.yaml:1: apps: is unknown"},
		{"two documents", "applications: {}\n---\n{}", "second document"},
		{"a bad code", "applications:\n  a.b: {secret: '" + hash + "'}", "a.yaml:2: applications.a.b: \"a.b\" is not a valid application code"},
		{"a code twice", "applications:\n  a: {secret: '" + hash + "'}\n  a: {secret: '" + hash + "'}", "a.yaml:3: applications.a: is already defined on line 2"},
		{"no secret", "applications:\n  a: {}", "a.yaml:2: applications.a.secret: is missing"},
		{"a plain secret", "applications:\n  a: {secret: hunter2}", "applications.a.secret: is not an argon2id hash"},
		{"a costly hash", "applications:\n  a: {secret: '$argon2id$v=19$m=99999999,t=2,p=1$c29tZXNhbHQ$c29tZXNhbHQc29tZXNhbHQ'}", "cost is zero or too high"},
		{"an unknown member", "applications:\n  a:\n    secret: '" + hash + "'\n    action: start", "a.yaml:4: applications.a.action: is unknown"},
		{"an unknown action", "applications:\n  a:\n    secret: '" + hash + "'\n    actions: [start, fly]", `a.yaml:4: applications.a.actions: "fly" is not an action; the actions are start, stop,`},
		{"no action", "applications:\n  a:\n    secret: '" + hash + "'\n    actions: []", "a.yaml:4: applications.a.actions: is empty"},
		{"a star among others", "applications:\n  a:\n    secret: '" + hash + "'\n    businesses: ['*', 1]", "a.yaml:4: applications.a.businesses: * includes every name"},
		{"a set of businesses", "applications:\n  a:\n    secret: '" + hash + "'\n    businesses: ['biz_set:1']", "only * covers sets"},
		{"neither true nor false", "applications:\n  a:\n    secret: '" + hash + "'\n    skip_user_auth: maybe", "a.yaml:4: applications.a.skip_user_auth: is neither true nor false"},
	} {
		_, err := Parse("a.yaml", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the secret", c.name)
		}
	}
	_, err := Parse("a.yaml", []byte("applications:\n  a: {secret: x}\n  b: {actions: [fly]}"))
	if err == nil || strings.Count(err.Error(), "a.yaml:") != 3 {
		t.Errorf("three mistakes are told as\n%v", err)
	}
}

func TestAFileKeepsWhatSomebodyWroteBesideTheApplications(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "apps.yaml")
	text := "# ours\napplications:\n  # the shop, ask Ann\n  shop: {secret: '" + cheapHash("a") + "', businesses: [2, \"x\"]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	actions, err := ParseActions([]string{"start", "registration"})
	if err != nil {
		t.Fatal(err)
	}
	put(t, path, Application{Code: "null", Secret: cheapHash("b"), Businesses: NoLimit(), Actions: actions, SkipUserAuth: true, SigningKey: "123"})
	after, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(after), "# ours") || !strings.Contains(string(after), "# the shop, ask Ann") {
		t.Errorf("%v\n%s", err, after)
	}
	file, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	found := file.Applications()
	if len(found) != 2 || found[0].Businesses.String() != "2,x" || !found[0].Actions.All() || found[0].SkipUserAuth {
		t.Errorf("the first one is now %+v", found)
	}
	if a := found[1]; a.Code != "null" || a.SigningKey != "123" || !a.SkipUserAuth || a.Actions.String() != "start,registration" || !a.Businesses.All() {
		t.Errorf("the second one is %+v", a)
	}
}

func put(t *testing.T, path string, a Application) {
	t.Helper()
	if err := Update(path, func(f *File) error { f.Put(a); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatOthersMayReadOrWriteIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "apps.yaml")
	put(t, path, Application{Code: "a", Secret: cheapHash("a"), Businesses: NoLimit(), Actions: NoLimit()})
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o440: true, 0o604: false, 0o644: false, 0o620: false, 0o602: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if (err == nil) != good {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if err != nil && !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %04o: %v does not say what to do", mode, err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "procfleet app add") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestAFileKeepsItsModeForAGroupAndNewOnesArePrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "apps.yaml")
	a := Application{Code: "a", Secret: cheapHash("a"), Businesses: NoLimit(), Actions: NoLimit()}
	put(t, path, a)
	mode := func() os.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode() != 0o600 {
		t.Errorf("a new file has mode %04o", mode())
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	put(t, path, a)
	if mode() != 0o640 {
		t.Errorf("after a change the mode is %04o", mode())
	}
}

func TestChangesAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "apps.yaml")
	var all sync.WaitGroup
	hash := cheapHash("x")
	for code := range strings.SplitSeq("abcdefghijklmnop", "") {
		all.Go(func() {
			err := Update(path, func(f *File) error {
				f.Put(Application{Code: code, Secret: hash, Businesses: NoLimit(), Actions: NoLimit()})
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if file, err := Read(path); err != nil || len(file.Applications()) != 16 {
		t.Errorf("%v, %v", file, err)
	}
}

func TestACodeThatIsPutInTwiceIsReplacedAndCanBeTakenOut(t *testing.T) {
	t.Parallel()
	f := &File{}
	a := Application{Code: "a", Secret: cheap, Businesses: NoLimit(), Actions: NoLimit()}
	if f.Put(a) || !f.Put(a) || len(f.Applications()) != 1 || f.Remove("b") || !f.Remove("a") || len(f.Applications()) != 0 {
		t.Error("putting in or taking out says or does something else")
	}
}

func TestALimitCoversWhatItSays(t *testing.T) {
	t.Parallel()
	some, err := ParseBusinesses([]string{"1", "2"})
	if err != nil {
		t.Fatal(err)
	}
	limited, free := Application{Businesses: some}, Application{Businesses: NoLimit()}
	for business, want := range map[string]bool{"1": true, "2": true, "3": false, "": false, "biz_set:1": false} {
		if limited.Covers(business) != want {
			t.Errorf("one that is limited to 1 and 2 covers %q: %v", business, !want)
		}
		if !free.Covers(business) {
			t.Errorf("one without limit does not cover %q", business)
		}
	}
	starts, err := ParseActions([]string{"start", "start"})
	if err != nil || starts.String() != "start" {
		t.Fatal(starts, err)
	}
	limited.Actions = starts
	if denied := limited.Denied("start", "stop", "stop", Registration); len(denied) != 2 || denied[0] != "stop" || denied[1] != Registration {
		t.Errorf("denied %v", denied)
	}
}

func FuzzAFileThatIsReadCanBeWrittenAndReadAgain(f *testing.F) {
	f.Add("applications:\n  a: {secret: '" + cheapHash("a") + "'}\n")
	f.Add("# nothing\n")
	f.Add("applications: null")
	f.Add("&a {applications: &b {x: *b}}")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("f", []byte(text))
		if err != nil {
			return
		}
		n := len(file.apps)
		if !file.Put(Application{Code: "new-one", Secret: cheap + "c29tZXNhbHRzb21lc2FsdA", Businesses: NoLimit(), Actions: NoLimit()}) {
			n++
		}
		out, err := file.text()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if again, err := Parse("f", out); err != nil || len(again.apps) != n {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
	})
}
