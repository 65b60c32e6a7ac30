package fleetkey

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

const host = "3:10.0.0.1"

func ring(tb testing.TB, generations map[string]int, ids ...string) *Ring {
	tb.Helper()
	f := File{Generations: generations}
	for _, id := range ids {
		f.Keys = append(f.Keys, Key{ID: id, Secret: testSecrets[id]})
	}
	r, err := f.Ring()
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

var testSecrets = func() map[string]string {
	secrets := map[string]string{}
	for _, id := range []string{"k1", "k2", "k3"} {
		k, err := NewKey(id)
		if err != nil {
			panic(err)
		}
		secrets[id] = k.Secret
	}
	return secrets
}()

func message() *Message {
	return &Message{Purpose: "procfleet.agent.v1.command", Answers: "", Body: []byte(`{"host":"3:10.0.0.1"}`)}
}

func TestBothSidesBelieveEachOther(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		server, agents *Ring
		want           error
	}{
		{"the same key", ring(t, nil, "k1"), ring(t, nil, "k1"), nil},
		{"another key", ring(t, nil, "k1"), ring(t, nil, "k2"), ErrUnknownKey},
		{"a replacement has begun at the servers", ring(t, nil, "k2", "k1"), ring(t, nil, "k1"), nil},
		{"and has reached the host", ring(t, nil, "k2", "k1"), ring(t, nil, "k2", "k1"), nil},
		{"and is over at the servers", ring(t, nil, "k2"), ring(t, nil, "k2", "k1"), nil},
		{"and left the host behind", ring(t, nil, "k2"), ring(t, nil, "k1"), ErrUnknownKey},
		{"the host was revoked", ring(t, map[string]int{host: 1}, "k1"), ring(t, nil, "k1"), ErrUnknownKey},
		{"and enrolled again", ring(t, map[string]int{host: 1}, "k1"), ring(t, map[string]int{host: 1}, "k1"), nil},
		{"another host was revoked", ring(t, map[string]int{"3:10.0.0.2": 1}, "k1"), ring(t, nil, "k1"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			agent := c.agents.Host(host)
			down, up := map[string][]string{}, map[string][]string{}
			c.server.Sign(down, host, message())
			if err := agent.Verify(down, message()); !errors.Is(err, c.want) {
				t.Errorf("the agent says %v, want %v", err, c.want)
			}
			agent.Sign(up, message())
			if err := c.server.Verify(up, host, message()); !errors.Is(err, c.want) {
				t.Errorf("the server says %v, want %v", err, c.want)
			}
		})
	}
}

func TestWhatIsChangedIsForged(t *testing.T) {
	t.Parallel()
	r := ring(t, nil, "k1")
	signed := map[string][]string{}
	r.Sign(signed, host, message())
	for name, m := range map[string]*Message{
		"body":    {Purpose: message().Purpose, Body: []byte(`{"host":"3:10.0.0.2"}`)},
		"purpose": {Purpose: "procfleet.agent.v1.resend", Body: message().Body},
		"answers": {Purpose: message().Purpose, Answers: "another", Body: message().Body},
		// A byte that moves from one part to the next changes the message.
		"shifted": {Purpose: message().Purpose, Answers: string(message().Body[:1]), Body: message().Body[1:]},
	} {
		if err := r.Host(host).Verify(signed, m); !errors.Is(err, ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Host("3:10.0.0.2").Verify(signed, message()); !errors.Is(err, ErrForged) {
		t.Errorf("another host believes it: %v", err)
	}
	for _, value := range []string{"", "k1", "k1 0", "k1 0 AAAA", "k1 0 " + strings.Repeat("\n", 43), "k1 -1 " + signed[signatureHeader][0][5:], "k1 00 " + signed[signatureHeader][0][5:], signed[signatureHeader][0] + "=", signed[signatureHeader][0] + " "} {
		if err := r.Host(host).Verify(map[string][]string{signatureHeader: {value}}, message()); !errors.Is(err, ErrForged) {
			t.Errorf("%q: %v", value, err)
		}
	}
	if err := r.Host(host).Verify(nil, message()); !errors.Is(err, ErrUnsigned) {
		t.Errorf("unsigned: %v", err)
	}
	if err := r.Host(host).Verify(map[string][]string{signatureHeader: {respelled(signed[signatureHeader][0])}}, message()); !errors.Is(err, ErrForged) {
		t.Errorf("another spelling of the same MAC: %v", err)
	}
	many := append(slices.Repeat([]string{"old 0" + signed[signatureHeader][0][len("k1 0"):]}, maxSignatures), signed[signatureHeader]...)
	if err := r.Host(host).Verify(map[string][]string{signatureHeader: many}, message()); !errors.Is(err, ErrForged) {
		t.Errorf("%d signatures: %v", len(many), err)
	}
}

// respelled changes the two unused bits at the end of a MAC's base64.
func respelled(signature string) string {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	end := len(signature) - 1
	return signature[:end] + string(digits[strings.IndexByte(digits, signature[end])+1])
}

// A revoked host cannot claim a later generation of its enrollment: the number of a generation is public,
// but its key is secret.
func TestARevokedHostCannotSayThatItWasEnrolledAgain(t *testing.T) {
	t.Parallel()
	signed := map[string][]string{}
	ring(t, nil, "k1").Host(host).Sign(signed, message())
	claim := strings.Replace(signed[signatureHeader][0], "k1 0 ", "k1 1 ", 1)
	err := ring(t, map[string]int{host: 1}, "k1").Verify(map[string][]string{signatureHeader: {claim}}, host, message())
	if !errors.Is(err, ErrForged) {
		t.Errorf("%q: %v", claim, err)
	}
}

func TestWhatIsNoRingIsRefused(t *testing.T) {
	t.Parallel()
	key := func(id string) Key { return Key{ID: id, Secret: testSecrets["k1"]} }
	for what, f := range map[string]File{
		"no key":                    {},
		"too many keys":             {Keys: []Key{key("1"), key("2"), key("3"), key("4"), key("5")}},
		"an id twice":               {Keys: []Key{key("1"), key("1")}},
		"an id with a space":        {Keys: []Key{key("1 0")}},
		"a short secret":            {Keys: []Key{{ID: "1", Secret: "c2hvcnQ="}}},
		"a generation below zero":   {Keys: []Key{key("1")}, Generations: map[string]int{host: -1}},
		"a generation of no host":   {Keys: []Key{key("1")}, Generations: map[string]int{"web": 1}},
		"another name of the host":  {Keys: []Key{key("1")}, Generations: map[string]int{"3:010.0.0.1": 1}},
		"a host with another cloud": {Keys: []Key{key("1")}, Generations: map[string]int{"03:10.0.0.1": 1}},
	} {
		if _, err := f.Ring(); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

func TestWithoutKeysNothingIsSignedAndAllIsBelieved(t *testing.T) {
	t.Parallel()
	var r *Ring
	headers := map[string][]string{}
	r.Sign(headers, host, message())
	r.Host(host).Sign(headers, message())
	if len(headers) > 0 {
		t.Errorf("signed: %v", headers)
	}
	if err := errors.Join(r.Verify(nil, host, message()), r.Host(host).Verify(nil, message())); err != nil {
		t.Error(err)
	}
	ring(t, nil, "k1").Sign(headers, host, message())
	if err := r.Host(host).Verify(headers, message()); !errors.Is(err, ErrNoKeys) {
		t.Errorf("an agent without keys, of a signed message: %v", err)
	}
}

func TestHostIsKept(t *testing.T) {
	t.Parallel()
	r := ring(t, map[string]int{host: 2}, "k2", "k1")
	text, err := yaml.Marshal(r.Host(host).File())
	if err != nil {
		t.Fatal(err)
	}
	var kept HostFile
	if err := yaml.UnmarshalStrict(text, &kept); err != nil {
		t.Fatal(err)
	}
	again, err := kept.Open()
	if err != nil {
		t.Fatal(err)
	}
	signed := map[string][]string{}
	r.Sign(signed, host, message())
	if err := again.Verify(signed, message()); err != nil {
		t.Error(err)
	}
}

func BenchmarkSignAndVerify(b *testing.B) {
	r, m := ring(b, nil, "k1"), &Message{Purpose: "procfleet.agent.v1.command", Body: make([]byte, 1<<10)}
	for b.Loop() {
		headers := map[string][]string{}
		r.Sign(headers, host, m)
		if err := r.Verify(headers, host, m); err != nil {
			b.Fatal(err)
		}
	}
}

func TestKeysOfHostsAreHKDF(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte{7}, keyBytes)
	info := "procfleet host v1\x00\x00\x00\x00\x00\x00\x00\x0a" + host + "\x00\x00\x00\x00\x00\x00\x00\x02"
	want, err := hkdf.Expand(sha256.New, secret, info, keyBytes)
	if err != nil {
		t.Fatal(err)
	}
	d := newDeriver(secret)
	for range 3 { // with an HMAC that was used before, too
		if got := d.hostKey("k1", host, 2); !bytes.Equal(got.secret[:], want) {
			t.Errorf("%x, want %x", got.secret, want)
		}
	}
}

// BenchmarkFloor measures the minimum cost of a signature.
func BenchmarkFloor(b *testing.B) {
	key, body := make([]byte, 32), make([]byte, 1<<10)
	for b.Loop() {
		for range 2 { // sign and verify
			h := hmac.New(sha256.New, key)
			h.Write(body)
			h.Sum(nil)
		}
	}
}

func TestKeysAreDerivedByManyAtOnce(t *testing.T) {
	t.Parallel()
	r := ring(t, nil, "k1")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			host := "0:10.0.0." + strconv.Itoa(i)
			agent := r.Host(host)
			for range 1000 {
				headers := map[string][]string{}
				r.Sign(headers, host, message())
				if err := agent.Verify(headers, message()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// FuzzVerify searches for a forged signature that is accepted. The key is constant, because several
// processes fuzz.
func FuzzVerify(f *testing.F) {
	file := File{Keys: []Key{{ID: "k1", Secret: base64.StdEncoding.EncodeToString(make([]byte, keyBytes))}}}
	r, err := file.Ring()
	if err != nil {
		f.Fatal(err)
	}
	signed := map[string][]string{}
	r.Sign(signed, host, message())
	f.Add(signed[signatureHeader][0], "")
	f.Add("k1 0 ", "k1 1 "+signed[signatureHeader][0][5:])
	f.Fuzz(func(t *testing.T, first, second string) {
		err := r.Verify(map[string][]string{signatureHeader: {first, second}}, host, message())
		if err == nil && first != signed[signatureHeader][0] && second != signed[signatureHeader][0] {
			t.Fatalf("%q and %q are believed", first, second)
		}
	})
}

func TestServersShareASecretForEachPurpose(t *testing.T) {
	one, other := ring(t, nil, "k1"), ring(t, nil, "k2")
	if got, again := one.Derive("console"), one.Derive("console"); len(got) != 32 || !bytes.Equal(got, again) {
		t.Errorf("%d bytes, the same again: %v", len(got), bytes.Equal(got, again))
	}
	if bytes.Equal(one.Derive("console"), one.Derive("other")) || bytes.Equal(one.Derive("console"), other.Derive("console")) {
		t.Error("two purposes, or two fleets, share a secret")
	}
	if (*Ring)(nil).Derive("console") != nil {
		t.Error("a server without keys has a secret")
	}
}
