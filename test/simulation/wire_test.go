package simulation

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// frame is one message of the NATS protocol: the words of its first line and, for
// messages with a body, the headers and the payload.
type frame struct {
	words   []string
	headers []byte
	payload []byte
	body    bool
	fromBus bool // sent by the broker to the client
}

// readFrame reads the next frame.
func readFrame(r *bufio.Reader) (*frame, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	f := &frame{words: strings.Fields(line)}
	if len(f.words) == 0 {
		return f, nil
	}
	switch f.words[0] {
	case "PUB", "MSG":
		return f, f.readBody(r, 0)
	case "HPUB", "HMSG":
		headers, err := strconv.Atoi(f.words[len(f.words)-2])
		if err != nil {
			return nil, err
		}
		return f, f.readBody(r, headers)
	}
	f.words = []string{strings.TrimRight(line, "\r\n")}
	return f, nil
}

func (f *frame) readBody(r *bufio.Reader, headers int) error {
	size, err := strconv.Atoi(f.words[len(f.words)-1])
	if err != nil {
		return err
	}
	data := make([]byte, size+len("\r\n"))
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	f.body, f.headers, f.payload = true, data[:headers], data[headers:size]
	return nil
}

// bytes encodes the frame, also after a change of its payload.
func (f *frame) bytes() []byte {
	if !f.body {
		return []byte(strings.Join(f.words, " ") + "\r\n")
	}
	f.words[len(f.words)-1] = strconv.Itoa(len(f.headers) + len(f.payload))
	var b bytes.Buffer
	b.WriteString(strings.Join(f.words, " "))
	b.WriteString("\r\n")
	b.Write(f.headers)
	b.Write(f.payload)
	b.WriteString("\r\n")
	return b.Bytes()
}

// subject returns the subject of a message, or "" for any other frame.
func (f *frame) subject() string {
	if !f.body {
		return ""
	}
	return f.words[1]
}

// fromStream reports whether JetStream delivered the message. JetStream redelivers
// it unless it is acknowledged.
func (f *frame) fromStream() bool {
	return f.body && f.fromBus && len(f.words) > 4 && strings.HasPrefix(f.words[3], "$JS.ACK.")
}

// weather has the faults of messages on the connections of a node. Probabilities
// apply to one message of core NATS from the broker to the node.
type weather struct {
	lost, twice, late float64
	// lateBy is the maximum delay of a late message, which other messages overtake.
	lateBy time.Duration
}

// port creates the connections of one node to the broker.
type port struct {
	broker interface{ InProcessConn() (net.Conn, error) }
	// mangle, if not nil, may change a frame, or report that it is dropped.
	mangle func(*frame) (drop bool)

	mu      sync.Mutex
	random  *rand.Rand
	weather weather
	cut     chan struct{} // closed when the cut ends; nil = no cut
	dead    bool
	links   map[*link]bool
}

func newPort(broker interface{ InProcessConn() (net.Conn, error) }, random *rand.Rand) *port {
	return &port{broker: broker, random: random, links: map[*link]bool{}}
}

var errNoRoute = errors.New("no route to the broker")

// InProcessConn connects to the broker through this port.
func (p *port) InProcessConn() (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead || p.cut != nil {
		return nil, errNoRoute
	}
	server, err := p.broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	client, inner := net.Pipe()
	l := &link{port: p, client: inner, server: server, over: make(chan struct{})}
	p.links[l] = true
	for _, d := range []struct {
		from, to net.Conn
		fromBus  bool
	}{{inner, server, false}, {server, inner, true}} {
		// Each direction draws separately, so that the messages in one direction do
		// not change the faults in the other.
		random := rand.New(rand.NewPCG(p.random.Uint64(), 0))
		frames := make(chan *sent, 1<<12)
		go l.receive(d.from, frames, random, d.fromBus)
		go l.deliver(d.to, frames)
	}
	return client, nil
}

// partition blocks all frames until it is called with false.
func (p *port) partition(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.cut == nil:
		p.cut = make(chan struct{})
	case !on && p.cut != nil:
		close(p.cut)
		p.cut = nil
	}
}

// set changes the faults of messages.
func (p *port) set(w weather) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.weather = w
}

// disconnect closes the connections; frames in transit are lost. With kill the port
// accepts no further connection.
func (p *port) disconnect(kill bool) {
	p.mu.Lock()
	p.dead = p.dead || kill
	links := p.links
	p.links = map[*link]bool{}
	p.mu.Unlock()
	for l := range links {
		l.end()
	}
}

func (p *port) now() (weather, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.weather, p.cut
}

// link is one connection.
type link struct {
	port           *port
	client, server net.Conn
	once           sync.Once
	over           chan struct{}
}

// sent is a frame with its time of arrival.
type sent struct {
	*frame
	at time.Time
}

func (l *link) end() {
	l.once.Do(func() {
		close(l.over)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

const (
	// leastLatency and mostLatency limit the latency of an ordinary frame.
	leastLatency, mostLatency = 50 * time.Microsecond, 500 * time.Microsecond
)

// receive reads frames and applies the faults to each.
func (l *link) receive(from net.Conn, frames chan<- *sent, random *rand.Rand, fromBus bool) {
	defer l.end()
	r := bufio.NewReader(from)
	var last time.Time
	for {
		f, err := readFrame(r)
		if err != nil {
			return
		}
		f.fromBus = fromBus
		if l.port.mangle != nil && l.port.mangle(f) {
			continue
		}
		w, _ := l.port.now()
		at := time.Now().Add(leastLatency + time.Duration(random.Int64N(int64(mostLatency-leastLatency))))
		if at.Before(last) {
			at = last
		}
		if fromBus && f.body {
			lost, twice, late := random.Float64() < w.lost, random.Float64() < w.twice, random.Float64() < w.late
			switch {
			case lost:
				continue
			case late && !f.fromStream():
				delay := time.Duration(random.Int64N(int64(w.lateBy)))
				time.AfterFunc(delay, func() { l.pass(frames, &sent{f, time.Time{}}) })
				continue
			case twice && strings.HasPrefix(f.subject(), "procfleet."):
				l.pass(frames, &sent{f, at})
			}
		}
		last = at
		l.pass(frames, &sent{f, at})
	}
}

func (l *link) pass(frames chan<- *sent, f *sent) {
	select {
	case frames <- f:
	case <-l.over:
	}
}

// deliver writes frames at their time of arrival. While the port is cut they wait,
// as in TCP.
func (l *link) deliver(to net.Conn, frames <-chan *sent) {
	defer l.end()
	for {
		select {
		case f := <-frames:
			time.Sleep(time.Until(f.at))
			if !l.passable() {
				return
			}
			if _, err := to.Write(f.bytes()); err != nil {
				return
			}
		case <-l.over:
			return
		}
	}
}

// passable waits while the port is cut. It reports false if the link ended.
func (l *link) passable() bool {
	for {
		_, cut := l.port.now()
		if cut == nil {
			return true
		}
		select {
		case <-cut:
		case <-l.over:
			return false
		}
	}
}
