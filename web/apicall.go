package web

import (
	"bytes"
	"io"
	"net/http"
)

// apiCall is the transport of a client that calls the API of this process. The API sees the
// connection of the viewer: his address, and the account of a local one.
type apiCall struct {
	api     http.Handler
	address string
}

// RoundTrip serves r and returns the whole response. The context of r is that of the viewer's request.
func (c *apiCall) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	served := r.Clone(r.Context())
	served.RemoteAddr, served.RequestURI = c.address, r.URL.RequestURI()
	w := &response{header: make(http.Header)}
	c.api.ServeHTTP(w, served)
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// response is the buffered response of the API.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
