package worker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agentproto"
)

// asker sends requests to many agents at once and routes their answers back.
// All of a worker's requests share one reply subscription: a subscription or
// a goroutine for each of thousands of hosts would cost more than the asking.
type asker struct {
	conn   *nats.Conn
	prefix string // of the ids of requests: a word of this worker, and a dot
	// overflowed counts an answer that found no room.
	overflowed func()

	mu   sync.Mutex
	next uint64
	open map[uint64]*asking
	sub  *nats.Subscription
}

func newAsker(conn *nats.Conn, overflowed func()) *asker {
	return &asker{conn: conn, prefix: rand.Text() + ".", overflowed: overflowed, open: map[uint64]*asking{}}
}

// start subscribes; stop ends it.
func (a *asker) start() error {
	sub, err := a.conn.Subscribe(agentproto.AnswersTo(a.prefix+"*"), a.route)
	if err != nil {
		return fmt.Errorf("subscribe to agents' answers: %w", err)
	}
	a.sub = sub
	return nil
}

// stop is for the end of a worker; errors would only say that the connection
// is already gone.
func (a *asker) stop() { _ = a.sub.Unsubscribe() }

// asking is a set of requests whose answers arrive on one channel. A request
// is known by the index of its host and by the number of the try.
type asking struct {
	asker   *asker
	id      uint64
	answers chan answer
}

// answer is what came back for one try to one host.
type answer struct {
	host, try int
	nobody    bool // the server says that nobody listens on the host's subject
	header    nats.Header
	data      []byte
}

// begin opens a set of requests; room is how many answers may wait unread.
// Answers beyond that are dropped, and counted: their hosts are asked again.
func (a *asker) begin(room int) *asking {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	q := &asking{asker: a, id: a.next, answers: make(chan answer, room)}
	a.open[q.id] = q
	return q
}

// end forgets the set; later answers go nowhere.
func (q *asking) end() {
	q.asker.mu.Lock()
	defer q.asker.mu.Unlock()
	delete(q.asker.open, q.id)
}

// send publishes one request. It does not wait, not even for the network.
func (q *asking) send(host, try int, subject string, header nats.Header, data []byte) error {
	msg := nats.Msg{Subject: subject, Reply: agentproto.AnswerSubject(subject, q.replySubject(host, try)), Header: header, Data: data}
	return q.asker.conn.PublishMsg(&msg)
}

func (q *asking) replySubject(host, try int) string {
	b := make([]byte, 0, len(q.asker.prefix)+24)
	b = append(b, q.asker.prefix...)
	b = strconv.AppendUint(b, q.id, 36)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(host), 36)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(try), 36)
	return string(b)
}

// headerStatus and statusNobody are how a NATS server answers a request that
// nobody could get.
const (
	headerStatus = "Status"
	statusNobody = "503"
)

func (a *asker) route(msg *nats.Msg) {
	id, got, err := parseReplyToken(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:])
	if err != nil {
		return // not a subject that we gave out
	}
	got.header, got.data = msg.Header, msg.Data
	got.nobody = len(msg.Data) == 0 && msg.Header.Get(headerStatus) == statusNobody
	a.mu.Lock()
	q := a.open[id]
	a.mu.Unlock()
	if q == nil {
		return
	}
	select {
	case q.answers <- got:
	default:
		a.overflowed()
	}
}

var errReplyToken = errors.New("not a reply token")

func parseReplyToken(token string) (asking uint64, a answer, err error) {
	first, rest, ok := strings.Cut(token, "-")
	second, third, ok2 := strings.Cut(rest, "-")
	asking, err = strconv.ParseUint(first, 36, 64)
	host, err2 := strconv.ParseUint(second, 36, 31)
	try, err3 := strconv.ParseUint(third, 36, 31)
	if !ok || !ok2 || err != nil || err2 != nil || err3 != nil {
		return 0, answer{}, errReplyToken
	}
	return asking, answer{host: int(host), try: int(try)}, nil
}
