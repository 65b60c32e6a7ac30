package tlsfiles

import (
	"crypto/tls"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// checkEvery is the minimum interval between two checks of the files for changes.
const checkEvery = time.Second

// source provides a TLS configuration with the current content of the files.
type source struct {
	files Files
	as    use
	build func(*material) *tls.Config
	log   logrus.FieldLogger

	mu      sync.Mutex
	checked time.Time // last check of the files
	have    *tls.Config
	of      *material // content from which have was built
	failure string    // error of the last reload; "" if it succeeded
}

// open reads the files for the first time. It accepts expired and not yet valid
// certificates, and logs them: the peer's clock decides.
func open(files Files, as use, log logrus.FieldLogger, build func(*material) *tls.Config) (*source, error) {
	read, err := files.read(as)
	if err != nil {
		return nil, err
	}
	s := &source{files: files, as: as, build: build, log: log.WithField("component", "tls"), checked: time.Now(), of: read, have: build(read)}
	if err := read.inForce(files, s.checked); err != nil {
		s.log.WithError(err).Error("certificate expired or not yet valid")
	}
	return s, nil
}

// config returns the configuration with the last valid content of the files. While an
// operator replaces files, certificate and key may not match. config returns the same
// pointer until the content changes.
func (s *source) config() *tls.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.checked) < checkEvery {
		return s.have
	}
	s.checked = now
	read, err := s.files.read(s.as)
	if err == nil && read.digest == s.of.digest {
		s.failure = ""
		return s.have
	}
	if err == nil {
		err = read.inForce(s.files, now)
	}
	if err != nil {
		if err.Error() != s.failure { // log the first of equal errors
			s.failure = err.Error()
			s.log.WithError(err).Warn("certificate reload failed, keeping the previous certificates")
		}
		return s.have
	}
	s.failure, s.of, s.have = "", read, s.build(read)
	s.log.WithField("files", s.files.names()).Info("certificates reloaded")
	return s.have
}

func (f Files) names() []string {
	return slices.DeleteFunc([]string{f.CA, f.Cert, f.Key}, func(name string) bool { return name == "" })
}

// Client provides the TLS configuration for connections to servers.
type Client struct{ source *source }

// Client reads the files for a client's connections and logs reloads to log. Expired
// and not yet valid certificates are no error here, unlike in [Files.ValidateClient].
func (f Files) Client(log logrus.FieldLogger) (*Client, error) {
	s, err := open(f, asClient, log, func(m *material) *tls.Config {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: m.roots}
		if m.own != nil {
			cfg.Certificates = []tls.Certificate{*m.own}
		}
		return cfg
	})
	if err != nil {
		return nil, err
	}
	return &Client{s}, nil
}

// Config returns the configuration for the next connection. The caller must not
// modify it, and must add the ServerName to a copy. Config returns the same pointer
// until the files change.
func (c *Client) Config() *tls.Config { return c.source.config() }

// Server reads the files for a server's listener and logs reloads to log. With a CA,
// clients must present a certificate. ALPN offers HTTP/1.1 only, because the limits
// on HTTP count connections.
func (f Files) Server(log logrus.FieldLogger) (*tls.Config, error) {
	s, err := open(f, asServer, log, serverConfig)
	if err != nil {
		return nil, err
	}
	// Callers may inspect the fields of outer; connections use s.config.
	outer := s.have.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.config(), nil }
	return outer, nil
}

func serverConfig(m *material) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*m.own}}
	if m.roots != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, m.roots
		// A resumed session would not be verified against a changed CA.
		cfg.SessionTicketsDisabled = true
	}
	return cfg
}

// Transport returns a copy of base that connects with the client's files. base itself
// is not used, and must not be modified afterwards.
func (c *Client) Transport(base *http.Transport) http.RoundTripper {
	return &transport{client: c, base: base}
}

// transport replaces its http.Transport when the files change, because an
// http.Transport retains its initial TLS configuration.
type transport struct {
	client *Client
	base   *http.Transport

	mu  sync.Mutex
	now *http.Transport
	of  *tls.Config // TLS configuration of the transport now
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.current().RoundTrip(r)
}

func (t *transport) current() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	cfg := t.client.Config()
	if cfg != t.of {
		if t.now != nil {
			t.now.CloseIdleConnections()
		}
		t.now, t.of = t.base.Clone(), cfg
		t.now.TLSClientConfig = cfg.Clone()
	}
	return t.now
}

// CloseIdleConnections implements [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() { t.current().CloseIdleConnections() }
