package dispatcher

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

// heldBytes counts the bytes of request bodies that running handlers have read.
type heldBytes struct{ now, most atomic.Int64 }

func (h *heldBytes) add(n int) {
	now := h.now.Add(int64(n))
	for most := h.most.Load(); now > most && !h.most.CompareAndSwap(most, now); most = h.most.Load() {
	}
}

// countedBody adds the bytes that are read from it to held.
type countedBody struct {
	io.ReadCloser
	held     *heldBytes
	own      int
	released bool
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.released {
		b.own += n
		b.held.add(n)
	}
	return n, err
}

func (b *countedBody) release() {
	if !b.released {
		b.released = true
		b.held.add(-b.own)
	}
}

// releasing releases a body when the response begins: the dispatcher discards the rest.
type releasing struct {
	http.ResponseWriter
	body *countedBody
}

func (w *releasing) WriteHeader(status int) {
	w.body.release()
	w.ResponseWriter.WriteHeader(status)
}

func (w *releasing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// In TestHalfSentBodiesOfStrangersTakeLittle callers with credentials in their bodies declare large
// bodies, send a part, and then nothing. The dispatcher must bound the memory for these parts, serve
// authenticated callers meanwhile, and close the connections.
func TestHalfSentBodiesOfStrangersTakeLittle(t *testing.T) {
	t.Parallel()
	const strangers, room = 48, 2 << 20
	cfg := guarded(t)
	cfg.Limits.UnauthenticatedBodies = room
	dispatcher, err := New(cfg, openStore(t), &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	var held heldBytes
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Bkapi-Authorization") == "" {
			body := &countedBody{ReadCloser: r.Body, held: &held}
			r.Body = body
			w = &releasing{w, body}
			defer body.release()
		}
		dispatcher.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	d := &testServer{t: t, url: server.URL, store: openStore(t)}
	var ended sync.WaitGroup
	for n := range strangers {
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer closing(t, conn)
		const declared, sent = 40 << 20, 128 << 10
		framing := fmt.Sprintf("Content-Length: %d\r\n\r\n", declared)
		switch n % 3 {
		case 1:
			framing = fmt.Sprintf("Content-Length: %d\r\n\r\n", bigBody)
		case 2:
			framing = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", declared)
		}
		ended.Go(func() {
			// The server may end the connection before it has read everything.
			_, _ = io.WriteString(conn, "POST "+v2Path+" HTTP/1.1\r\nHost: localhost\r\n"+framing+strings.Repeat(" ", sent))
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	testenv.Eventually(t, patience, func() bool { return held.most.Load() > room/2 }, "strangers send")
	header := bkapi("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_username", "ann")
	for range 5 {
		if a := d.call(http.MethodPost, v2Path, strings.Repeat(" ", bigBody)+gseBody(2, "10.0.0.1"), header...); a.body["result"] != true {
			t.Errorf("a caller who is known: %d %s", a.status, a.text)
		}
	}
	ended.Wait() // they are ended by the server, or the test has no end
	if most := held.most.Load(); most > room {
		t.Errorf("%d KiB of strangers were held at once, want at most %d", most>>10, room>>10)
	}
	body := strings.Replace(gseBody(2, "10.0.0.1"), "{", `{"bk_app_code":"free","bk_app_secret":"s3cret","bk_username":"ann",`, 1)
	if a := d.call(http.MethodPost, v2Path, strings.Repeat(" ", room/2)+body); a.body["result"] != true {
		t.Errorf("a caller who names itself in its body, afterwards: %d %s", a.status, a.text)
	}
}

// In TestACallerOfABusyDispatcherReceivesTheResponse a caller with credentials in its body begins to
// read only after it has sent 20 MiB, more than the buffers of the connection hold, while the memory
// for such bodies is used up.
func TestACallerOfABusyDispatcherReceivesTheResponse(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.Limits.UnauthenticatedBodies = leastBody
	d := startServer(t, cfg, openStore(t), &fakeQueue{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, conn)
	const size = 20 << 20
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", v2Path, size, strings.Repeat(" ", size)); err != nil {
		t.Errorf("the body was not read: %v", err)
	}
	if text, err := io.ReadAll(conn); err != nil || !strings.Contains(string(text), "nothing was done") || !strings.Contains(string(text), "Retry-After") {
		t.Errorf("%v, response %q", err, text)
	}
}

// In TestACallerThatSendsSlowlyDoesNotKeepOthersWaiting an authenticated caller occupies the only slot
// for a large body, sends half of it, and then nothing.
func TestACallerThatSendsSlowlyDoesNotKeepOthersWaiting(t *testing.T) {
	t.Parallel()
	cfg := guarded(t)
	cfg.Limits.BigBodies = 1
	taken := make(chan struct{})
	dispatcher, err := New(cfg, openStore(t), &fakeQueue{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Slow") != "" {
			r.Body = &announcedBody{r.Body, sync.OnceFunc(func() { close(taken) })}
		}
		dispatcher.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, conn)
	header := bkapi("bk_app_code", "free", "bk_app_secret", "s3cret", "bk_username", "ann")
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nX-Slow: yes\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		v2Path, header[0], header[1], 2*bigBody, strings.Repeat(" ", bigBody)); err != nil {
		t.Fatal(err)
	}
	<-taken
	d := &testServer{t: t, url: server.URL, store: openStore(t)}
	if a := d.call(http.MethodPost, v2Path, strings.Repeat(" ", bigBody)+gseBody(2, "10.0.0.1"), header...); a.body["result"] != true {
		t.Errorf("the next caller: %d %s", a.status, a.text)
	}
	if text, err := io.ReadAll(conn); err != nil || !strings.Contains(string(text), "arrives too slowly") {
		t.Errorf("the slow caller: %v %s", err, text)
	}
}

// announcedBody reports the first read of the body.
type announcedBody struct {
	io.ReadCloser
	begun func()
}

func (b *announcedBody) Read(p []byte) (int, error) {
	b.begun()
	return b.ReadCloser.Read(p)
}
