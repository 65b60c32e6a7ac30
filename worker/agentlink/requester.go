package agentlink

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
)

// Requester sends requests to many agents concurrently and routes the replies to the
// batch of their request. All requests of a worker share one reply subscription: a
// subscription or goroutine per host would cost more than the requests. A Requester is
// safe for concurrent use.
type Requester struct {
	conn       *nats.Conn
	prefix     string // common prefix of request ids: a random string per worker, and a dot
	overflowed func() // called for each dropped reply

	mu   sync.Mutex
	next uint64
	open map[uint64]*RequestBatch
	sub  *nats.Subscription
}

// NewRequester returns a requester that receives no replies until [Requester.Start]. It
// calls overflowed for each reply dropped because its batch has too many unread
// replies.
func NewRequester(conn *nats.Conn, overflowed func()) *Requester {
	return &Requester{conn: conn, prefix: rand.Text() + ".", overflowed: overflowed, open: map[uint64]*RequestBatch{}}
}

// Start subscribes to replies. The caller must call [Requester.Stop].
func (r *Requester) Start() error {
	sub, err := r.conn.Subscribe(agentproto.AnswersTo(r.prefix+"*"), r.route)
	if err != nil {
		return fmt.Errorf("subscribe to agents' replies: %w", err)
	}
	r.sub = sub
	return nil
}

// Stop ends the subscription.
func (r *Requester) Stop() { _ = r.sub.Unsubscribe() }

// RequestBatch is a set of requests whose replies arrive on one channel. A request is
// identified by the index of its host and the number of its attempt.
type RequestBatch struct {
	Replies   chan Reply
	requester *Requester
	id        uint64
}

// Reply is the reply to one attempt for one host.
type Reply struct {
	Host, Try    int
	NoResponders bool // the NATS server reports that no agent subscribes to the host's subject
	Header       nats.Header
	Data         []byte
}

// Begin opens a batch; the caller must call [RequestBatch.End]. The batch buffers
// unread replies; further replies are dropped and reported as overflowed.
func (r *Requester) Begin(unread int) *RequestBatch {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	b := &RequestBatch{requester: r, id: r.next, Replies: make(chan Reply, unread)}
	r.open[b.id] = b
	return b
}

// End closes the batch. Later replies are discarded.
func (b *RequestBatch) End() {
	b.requester.mu.Lock()
	defer b.requester.mu.Unlock()
	delete(b.requester.open, b.id)
}

// Send publishes one request. It does not block.
func (b *RequestBatch) Send(host, try int, subject string, header nats.Header, data []byte) error {
	msg := nats.Msg{Subject: subject, Reply: agentproto.AnswerSubject(subject, b.ReplySubject(host, try)), Header: header, Data: data}
	return b.requester.conn.PublishMsg(&msg)
}

// ReplySubject returns the id of a request, to which the agent sends its reply.
func (b *RequestBatch) ReplySubject(host, try int) string {
	subject := make([]byte, 0, len(b.requester.prefix)+24)
	subject = append(subject, b.requester.prefix...)
	subject = strconv.AppendUint(subject, b.id, 36)
	subject = append(subject, '-')
	subject = strconv.AppendInt(subject, int64(host), 36)
	subject = append(subject, '-')
	subject = strconv.AppendInt(subject, int64(try), 36)
	return string(subject)
}

// headerStatus and statusNoResponders identify the NATS server's reply to a request on
// a subject without subscribers.
const (
	headerStatus       = "Status"
	statusNoResponders = "503"
)

func (r *Requester) route(msg *nats.Msg) {
	id, reply, ok := parseReplyToken(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:])
	if !ok {
		return // not a subject of this requester
	}
	reply.Header, reply.Data = msg.Header, msg.Data
	reply.NoResponders = len(msg.Data) == 0 && msg.Header.Get(headerStatus) == statusNoResponders
	r.mu.Lock()
	b := r.open[id]
	r.mu.Unlock()
	if b == nil {
		return
	}
	select {
	case b.Replies <- reply:
	default:
		r.overflowed()
	}
}

func parseReplyToken(token string) (batch uint64, r Reply, ok bool) {
	first, rest, ok1 := strings.Cut(token, "-")
	second, third, ok2 := strings.Cut(rest, "-")
	batch, err := strconv.ParseUint(first, 36, 64)
	host, err2 := strconv.ParseUint(second, 36, 31)
	try, err3 := strconv.ParseUint(third, 36, 31)
	ok = ok1 && ok2 && err == nil && err2 == nil && err3 == nil
	return batch, Reply{Host: int(host), Try: int(try)}, ok
}
