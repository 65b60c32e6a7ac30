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

// Requester sends requests to many agents at once and routes the replies back.
// All requests of a worker share one reply subscription: a subscription or a
// goroutine for each of thousands of hosts would cost more than the requests.
// It is safe for concurrent use.
type Requester struct {
	conn       *nats.Conn
	prefix     string // of the ids of requests: a random word of this worker, and a dot
	overflowed func() // counts a reply that was dropped

	mu   sync.Mutex
	next uint64
	open map[uint64]*RequestBatch
	sub  *nats.Subscription
}

// NewRequester returns a requester that receives no replies until
// [Requester.Start]. It calls overflowed for each reply that it drops because a
// batch has too many unread ones.
func NewRequester(conn *nats.Conn, overflowed func()) *Requester {
	return &Requester{conn: conn, prefix: rand.Text() + ".", overflowed: overflowed, open: map[uint64]*RequestBatch{}}
}

// Start subscribes to replies; [Requester.Stop] must follow.
func (r *Requester) Start() error {
	sub, err := r.conn.Subscribe(agentproto.AnswersTo(r.prefix+"*"), r.route)
	if err != nil {
		return fmt.Errorf("subscribe to agents' replies: %w", err)
	}
	r.sub = sub
	return nil
}

// Stop ends the subscription; it fails if the connection is closed, and with it
// the subscription.
func (r *Requester) Stop() { _ = r.sub.Unsubscribe() }

// RequestBatch is a set of requests whose replies arrive on one channel. A
// request is identified by the index of its host and the number of the attempt.
type RequestBatch struct {
	Replies   chan Reply
	requester *Requester
	id        uint64
}

// Reply is the reply to one attempt to one host.
type Reply struct {
	Host, Try    int
	NoResponders bool // the NATS server reports that no agent subscribes to the host's subject
	Header       nats.Header
	Data         []byte
}

// Begin opens a batch; [RequestBatch.End] must follow. Up to unread replies wait
// to be read; further ones are dropped and counted.
func (r *Requester) Begin(unread int) *RequestBatch {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	b := &RequestBatch{requester: r, id: r.next, Replies: make(chan Reply, unread)}
	r.open[b.id] = b
	return b
}

// End closes the batch; later replies are discarded.
func (b *RequestBatch) End() {
	b.requester.mu.Lock()
	defer b.requester.mu.Unlock()
	delete(b.requester.open, b.id)
}

// Send publishes one request. It does not wait, not even for the network.
func (b *RequestBatch) Send(host, try int, subject string, header nats.Header, data []byte) error {
	msg := nats.Msg{Subject: subject, Reply: agentproto.AnswerSubject(subject, b.ReplySubject(host, try)), Header: header, Data: data}
	return b.requester.conn.PublishMsg(&msg)
}

// ReplySubject returns the id of a request, which its reply is sent to.
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

// headerStatus and statusNoResponders are how a NATS server replies to a request
// on a subject without subscriber.
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
