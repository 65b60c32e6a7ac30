package check

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
)

// callbacks receives callbacks and records them.
type callbacks struct {
	server *http.Server
	base   string // of the URLs
	log    *record

	mu   sync.Mutex
	seen map[string]bool // submissions that were called back
}

// Of so many submissions the first callback of one is answered with an error,
// so that it has to be repeated.
const failedCallbackEvery = 5

// listen starts to receive callbacks.
func listen(address string, log *record) (*callbacks, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for callbacks: %w", err)
	}
	c := &callbacks{base: "http://" + listener.Addr().String() + "/", log: log, seen: map[string]bool{}}
	const patience = 10 * time.Second
	c.server = &http.Server{Handler: c, ReadTimeout: patience}
	go func() { _ = c.server.Serve(listener) }() // ends with close
	return c, nil
}

// close stops receiving. Of nil it does nothing.
func (c *callbacks) close() {
	if c != nil {
		_ = c.server.Close()
	}
}

// url is what a submission names as its callback.
func (c *callbacks) url(s *Submission) string { return c.base + url.PathEscape(s.Key) }

func (c *callbacks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := Notice{At: time.Now(), Key: strings.TrimPrefix(r.URL.Path, "/"), Header: r.Header.Get("Idempotency-Key"), Status: http.StatusNoContent}
	body, err := readNotice(http.MaxBytesReader(w, r.Body, 1<<20))
	switch {
	case err != nil:
		n.Status = http.StatusBadRequest
	case c.first(n.Key)%failedCallbackEvery == 1:
		n.Status = http.StatusServiceUnavailable
	}
	n.Event, n.Task, n.State, n.Counts = body.Event, body.Task, body.State, body.Counts
	c.log.notice(n)
	w.WriteHeader(n.Status)
}

// first returns how many submissions were called back with this one, or 0 if it
// was called back before.
func (c *callbacks) first(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen[key] {
		return 0
	}
	c.seen[key] = true
	return len(c.seen)
}

// noticeBody is the body of a callback and of an event.
type noticeBody struct {
	Event    string              `json:"event"`
	Task     procfleet.TaskID    `json:"task"`
	State    procfleet.TaskState `json:"state"`
	Counts   procfleet.Counts    `json:"counts"`
	Business string              `json:"business"`
}

func readNotice(r interface{ Read([]byte) (int, error) }) (body noticeBody, err error) {
	return body, json.NewDecoder(r).Decode(&body)
}
