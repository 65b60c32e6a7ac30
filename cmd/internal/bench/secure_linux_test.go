package bench

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// TestWhatIsSecureLetsNobodyElseIn checks that the features in table titles are enabled:
// the system works, and rejects clients that lack one of the features.
func TestWhatIsSecureLetsNobodyElseIn(t *testing.T) {
	testenv.Long(t, "the security measures of started servers are in effect")
	t.Parallel()
	l := openSecure(t)
	if got, want := l.safety(), "with signed messages, NATS credentials, TLS to NATS, TLS to Redis"; got != want {
		t.Errorf("it is %q, want %q", got, want)
	}

	certificates := nats.ClientCert(l.NATSTLS.Cert, l.NATSTLS.Key)
	for name, c := range map[string]struct {
		options []nats.Option
		want    error
	}{
		"credentials":     {[]nats.Option{nats.RootCAs(l.NATSTLS.CA), certificates}, nats.ErrAuthorization},
		"a certificate":   {[]nats.Option{nats.RootCAs(l.NATSTLS.CA), nats.UserCredentials(l.NATSCreds)}, nil},
		"nothing of this": {[]nats.Option{nats.RootCAs(l.NATSTLS.CA), certificates, nats.UserCredentials(l.NATSCreds)}, nil},
	} {
		conn, err := nats.Connect(l.NATS, c.options...)
		if err == nil {
			conn.Close()
		}
		if name == "nothing of this" {
			if err != nil {
				t.Errorf("NATS refuses who lacks nothing: %v", err)
			}
			continue
		}
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("NATS says %v to who lacks %s, want %v", err, name, c.want)
		}
	}

	options := *l.redis.Options()
	options.MaxRetries = -1
	options.Dialer = nil // the dialer would present the client certificate
	options.TLSConfig = l.redisTLS.Config().Clone()
	options.TLSConfig.Certificates = nil
	bare := redis.NewClient(&options)
	defer func() { _ = bare.Close() }() // Redis is expected to reject this client
	if err := bare.Ping(t.Context()).Err(); err == nil {
		t.Error("Redis answers who has no certificate")
	}

	for _, c := range []struct {
		name string
		more []string
		want string
	}{
		{"signed", nil, ""},
		{"unsigned", []string{"--fleet-key", ""}, "0 of 1 hosts succeeded"},
	} {
		s, err := startSystem(t.Context(), l, fleet{agents: 2, more: c.more})
		said := ""
		if err == nil {
			s.stop()
		} else {
			said = err.Error()
		}
		if (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
			t.Errorf("with agents that are %s: %q, want %q", c.name, said, c.want)
		}
	}
}

// openSecure opens a lab with all security features. Its processes run the built program,
// not this test binary.
func openSecure(t *testing.T) *lab {
	t.Helper()
	redistest.Need(t)
	l := &lab{Config: Config{Start: true, Secure: secureAll, Runs: 1, Log: testenv.Log(t)}}
	l.plant = &plant{self: testenv.BuildBinary(t, "./cmd/procfleet-bench"), program: testenv.BuildBinary(t, "./cmd/procfleet"), dir: t.TempDir()}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSecureIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Secure{
		"none": {}, "": {}, "all": secureAll, "keys,credentials,tls": secureAll,
		"keys": {Keys: true}, "credentials": {Credentials: true}, "tls, keys": {Keys: true, TLS: true},
	} {
		var got, again Secure
		if err := errors.Join(got.Set(text), again.Set(got.String())); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
		if got != again {
			t.Errorf("%q is written %q, which is %+v", text, got.String(), again)
		}
	}
}
