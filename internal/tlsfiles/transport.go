package tlsfiles

import (
	"crypto/tls"
	"net/http"
	"sync"
)

// Transport returns a transport like base that makes its connections with the
// client's files. base is not used itself, and not to be changed any more.
func (c *Client) Transport(base *http.Transport) http.RoundTripper {
	return &transport{client: c, base: base}
}

// transport is one http.Transport after the other: each keeps the
// configuration that it was made with.
type transport struct {
	client *Client
	base   *http.Transport

	mu  sync.Mutex
	now *http.Transport
	of  *tls.Config // which now was made with
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

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *transport) CloseIdleConnections() { t.current().CloseIdleConnections() }
