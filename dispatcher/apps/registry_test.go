package apps

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// registryOf opens a file of applications, each with the secret "<code>-secret".
func registryOf(tb testing.TB, codes ...string) (r *Registry, path string, hashes *atomic.Int64) {
	tb.Helper()
	path = filepath.Join(tb.TempDir(), "apps.yaml")
	write(tb, path, cheapHash, codes...)
	r, hashes = open(tb, path)
	return r, path, hashes
}

func open(tb testing.TB, path string) (r *Registry, hashes *atomic.Int64) {
	tb.Helper()
	r, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	hashes = new(atomic.Int64)
	r.Hashed = func() { hashes.Add(1) }
	return r, hashes
}

func write(tb testing.TB, path string, hash func(secret string) string, codes ...string) {
	tb.Helper()
	err := Update(path, func(f *File) error {
		for _, a := range f.Applications() {
			f.Remove(a.Code)
		}
		for _, code := range codes {
			f.Put(Application{Code: code, Secret: hash(code + "-secret"), Businesses: NoLimit(), Actions: NoLimit(), SigningKey: code + "-key"})
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func TestASecretIsHashedOnceAndThenKnown(t *testing.T) {
	t.Parallel()
	r, _, hashes := registryOf(t, "a")
	ctx := t.Context()
	if _, err := r.Verify(ctx, "a", "wrong"); !errors.Is(err, ErrWrong) {
		t.Errorf("a wrong secret: %v", err)
	}
	if _, err := r.Verify(ctx, "a", "wrong"); !errors.Is(err, ErrWrong) || hashes.Load() != 1 {
		t.Errorf("the same wrong secret again: %v after %d hashes", err, hashes.Load())
	}
	for range 100 {
		if app, err := r.Verify(ctx, "a", "a-secret"); err != nil || app.Code != "a" {
			t.Fatal(app, err)
		}
	}
	for i := range 100 {
		if _, err := r.Verify(ctx, "a", "wrong"+strconv.Itoa(i)); !errors.Is(err, ErrWrong) {
			t.Fatal(err)
		}
	}
	if hashes.Load() != 2 {
		t.Errorf("%d hashes, want 2: one for a wrong secret, one for the right one", hashes.Load())
	}
	if _, err := r.Verify(ctx, "b", "a-secret"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown application: %v", err)
	}
}

// TestAFloodOfWrongSecretsLeavesRoomForGoodCalls counts hashes. During a flood of wrong secrets, a
// secret that was verified before needs no hash, and a new one waits for a few hashes.
func TestAFloodOfWrongSecretsLeavesRoomForGoodCalls(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "apps.yaml")
	write(t, path, Hash, "known", "flooded", "fresh") // a cheap hash would be computed many times while the scheduler has others run
	r, hashes := open(t, path)
	if _, err := r.Verify(t.Context(), "known", "known-secret"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var busy, wrong atomic.Int64
	for i := range 4 * waiters {
		flood.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, err := r.Verify(ctx, "flooded", "guess-"+strconv.Itoa(i)+"-"+strconv.Itoa(n))
				switch {
				case errors.Is(err, ErrBusy):
					busy.Add(1)
				case errors.Is(err, ErrWrong):
					wrong.Add(1)
				}
			}
		})
	}
	for wrong.Load() == 0 || busy.Load() == 0 {
		if _, err := r.Verify(ctx, "known", "known-secret"); err != nil {
			t.Fatalf("during the flood: %v", err)
		}
	}
	before := hashes.Load()
	if _, err := r.Verify(ctx, "fresh", "fresh-secret"); err != nil {
		t.Errorf("the first call of an application during the flood: %v", err)
	}
	if n := hashes.Load() - before; n > int64(4*cap(r.slots)+4) {
		t.Errorf("the first call of an application waited for %d hashes", n)
	}
	stop()
	flood.Wait()
}

func TestAChangeOfTheFileClearsWhatChangedAndNothingElse(t *testing.T) {
	t.Parallel()
	r, path, hashes := registryOf(t, "a", "b")
	ctx := t.Context()
	for _, code := range []string{"a", "b"} {
		if _, err := r.Verify(ctx, code, code+"-secret"); err != nil {
			t.Fatal(err)
		}
	}
	if changed, err := r.Refresh(); changed || err != nil {
		t.Errorf("nothing changed: %v, %v", changed, err)
	}
	err := Update(path, func(f *File) error {
		f.Put(Application{Code: "b", Secret: cheapHash("new"), Businesses: NoLimit(), Actions: NoLimit()})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := r.Refresh(); !changed || err != nil {
		t.Fatalf("%v, %v", changed, err)
	}
	before := hashes.Load()
	if _, err := r.Verify(ctx, "a", "a-secret"); err != nil || hashes.Load() != before {
		t.Errorf("a did not change: %v, %d hashes", err, hashes.Load()-before)
	}
	if _, err := r.Verify(ctx, "b", "b-secret"); !errors.Is(err, ErrWrong) {
		t.Errorf("the old secret of b: %v", err)
	}
	if _, err := r.Verify(ctx, "b", "new"); err != nil {
		t.Errorf("the new secret of b: %v", err)
	}
	write(t, path, cheapHash, "b")
	if changed, err := r.Refresh(); !changed || err != nil {
		t.Fatalf("%v, %v", changed, err)
	}
	if _, err := r.Verify(ctx, "a", "a-secret"); !errors.Is(err, ErrUnknown) {
		t.Errorf("a was taken out: %v", err)
	}
}

func TestAVersionThatCannotBeUsedLeavesTheOneBeforeInForce(t *testing.T) {
	t.Parallel()
	r, path, _ := registryOf(t, "a")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoil := map[string]func() error{
		"broken":  func() error { return os.WriteFile(path, []byte("applications: ["), 0o600) },
		"exposed": func() error { return errors.Join(os.WriteFile(path, good, 0o600), os.Chmod(path, 0o644)) },
		"missing": func() error { return os.Remove(path) },
	}
	for name, how := range spoil {
		if err := how(); err != nil {
			t.Fatal(err)
		}
		if changed, err := r.Refresh(); changed || err == nil {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
		if changed, err := r.Refresh(); changed || err != nil {
			t.Errorf("%s is told again: %v, %v", name, changed, err)
		}
		if _, err := r.Verify(t.Context(), "a", "a-secret"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(os.WriteFile(path, good, 0o600), os.Chmod(path, 0o600)); err != nil {
			t.Fatal(err)
		}
		if changed, err := r.Refresh(); !changed || err != nil {
			t.Errorf("after %s: %v, %v", name, changed, err)
		}
	}
}

func TestASignatureIsThatOfTheKey(t *testing.T) {
	t.Parallel()
	r, path, _ := registryOf(t, "a")
	mac := hmac.New(sha1.New, []byte("a-key"))
	mac.Write([]byte("text"))
	good := base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, c := range []struct {
		code, text, signature string
		want                  error
	}{
		{"a", "text", good, nil},
		{"a", "texts", good, ErrWrong},
		{"a", "text", "", ErrWrong},
		{"a", "text", "?", ErrWrong},
		{"b", "text", good, ErrUnknown},
	} {
		if _, err := r.VerifySignature(c.code, c.text, c.signature); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	put(t, path, Application{Code: "a", Secret: cheapHash("x"), Businesses: NoLimit(), Actions: NoLimit()})
	if _, err := r.Refresh(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.VerifySignature("a", "text", good); !errors.Is(err, ErrNoSigning) {
		t.Errorf("without a key: %v", err)
	}
}

// BenchmarkVerifyKnown measures the verification of a secret that was verified before: a digest
// and one comparison in constant time.
func BenchmarkVerifyKnown(b *testing.B) {
	r, _, _ := registryOf(b, "a")
	ctx := b.Context()
	if _, err := r.Verify(ctx, "a", "a-secret"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Verify(ctx, "a", "a-secret"); err != nil {
			b.Fatal(err)
		}
	}
}

// TestASecretThatGoesOnIsAnotherOne verifies that a secret of the maximum length with further
// characters appended is rejected, not truncated.
func TestASecretThatGoesOnIsAnotherOne(t *testing.T) {
	t.Parallel()
	path, secret := filepath.Join(t.TempDir(), "apps.yaml"), strings.Repeat("s", maxSecret)
	put(t, path, Application{Code: "a", Secret: cheapHash(secret), Businesses: NoLimit(), Actions: NoLimit()})
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Verify(t.Context(), "a", secret); err != nil {
		t.Error(err)
	}
	if _, err := r.Verify(t.Context(), "a", secret+"s"); !errors.Is(err, ErrWrong) {
		t.Errorf("with a letter more: %v", err)
	}
}
