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
	base   string // prefix of the callback URLs
	log    *record

	mu   sync.Mutex
	seen map[string]bool // submissions with a received callback
	// deliveries serves the webhook; nil until it is set.
	deliveries *deliveries
}

// failedCallbackEvery is the number of submissions per submission whose first
// callback gets an error, so that a worker must repeat it.
const failedCallbackEvery = 5

// listen starts the receiver of callbacks.
func listen(address string, log *record) (*callbacks, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for callbacks: %w", err)
	}
	c := &callbacks{base: "http://" + listener.Addr().String() + "/", log: log, seen: map[string]bool{}}
	const patience = 10 * time.Second
	c.server = &http.Server{Handler: c, ReadTimeout: patience}
	go func() { _ = c.server.Serve(listener) }() // returns after close
	return c, nil
}

// close stops the receiver. c may be nil.
func (c *callbacks) close() {
	if c != nil {
		_ = c.server.Close()
	}
}

// url returns the callback URL of a submission.
func (c *callbacks) url(s *Submission) string { return c.base + url.PathEscape(s.Key) }

func (c *callbacks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/"+webhookPath {
		c.mu.Lock()
		deliveries := c.deliveries
		c.mu.Unlock()
		deliveries.ServeHTTP(w, r)
		return
	}
	n := Notification{At: time.Now(), Key: strings.TrimPrefix(r.URL.Path, "/"), Header: r.Header.Get("Idempotency-Key"), Status: http.StatusNoContent}
	body, err := readNotification(http.MaxBytesReader(w, r.Body, 1<<20))
	switch {
	case err != nil:
		n.Status = http.StatusBadRequest
	case c.first(n.Key)%failedCallbackEvery == 1:
		n.Status = http.StatusServiceUnavailable
	}
	n.Event, n.Task, n.State, n.Counts = body.Event, body.Task, body.State, body.Counts
	c.log.addNotification(n)
	w.WriteHeader(n.Status)
}

// first returns the number of submissions with a received callback, or 0 if this
// submission had one before.
func (c *callbacks) first(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen[key] {
		return 0
	}
	c.seen[key] = true
	return len(c.seen)
}

// notificationBody is the body of a callback, and of an event of a task. The event of an
// acceptance has no number here: it may be missing after a dispatcher was killed.
type notificationBody struct {
	Number   int                 `json:"number"`
	Event    string              `json:"event"`
	Task     procfleet.TaskID    `json:"task"`
	State    procfleet.TaskState `json:"state"`
	Counts   procfleet.Counts    `json:"counts"`
	Business string              `json:"business"`
}

func readNotification(r interface{ Read([]byte) (int, error) }) (body notificationBody, err error) {
	return body, json.NewDecoder(r).Decode(&body)
}
