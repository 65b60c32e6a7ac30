package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent"
	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/dispatcher"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
	"github.com/procfleet/procfleet/test/cluster/check"
	"github.com/procfleet/procfleet/worker"
)

// fleet has all roles of one history.
type fleet struct {
	dir    string
	log    logrus.FieldLogger
	seed   uint64
	defect *defect

	broker *natsembed.Server
	store  *store
	marks  *marks
	conn   *nats.Conn // connection of the test, without faults
	nodes  []*node
	runs   sync.WaitGroup // all started processes

	step time.Duration // offset of the store's clock
	mu   sync.Mutex
	news []string // log of the faults, printed with the history
}

// defect is an intended defect; the zero value is none.
type defect struct {
	mangle func(*node, *frame) (drop bool) // changes messages of agents
	store  *storeDefect
	worker func(*worker.Config)
}

// node is a role on a separate machine. It runs a process, which can die and be
// started again.
type node struct {
	fleet *fleet
	name  string
	kind  check.Kind
	host  *host  // of an agent
	dir   string // data folder of an agent
	boots int

	mu      sync.Mutex
	process *role // nil if the node is down
	weather weather
	cut     bool
	point   string // point of the code at which the process dies
}

// role is one process of a node.
type role struct {
	port    *port
	conn    *nats.Conn
	client  *client      // connection to the store; nil for agents
	handler http.Handler // of a dispatcher
	dead    atomic.Bool
	died    chan struct{} // closed when it is dead
	stop    context.CancelFunc
	done    chan struct{} // closed when it has ended
}

func (f *fleet) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.news = append(f.news, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// random returns random numbers for one purpose, which do not depend on other
// events of the fleet.
func (f *fleet) random(purpose string) *rand.Rand {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(purpose)) // never fails
	return rand.New(rand.NewPCG(f.seed, hash.Sum64()))
}

// storeTime returns the time of the store's clock.
func (f *fleet) storeTime() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Add(f.step)
}

// newFleet starts the broker and the store, and creates the streams.
func newFleet(dir string, seed uint64, log logrus.FieldLogger, d *defect) (*fleet, error) {
	f := &fleet{dir: dir, log: log, seed: seed, defect: d, marks: &marks{}}
	var err error
	if f.broker, err = natsembed.Start(natsembed.Config{StoreDir: filepath.Join(dir, "nats"), MaxStore: 1 << 40, Log: log}); err != nil {
		return nil, err
	}
	if f.store, err = openStore(dir, f.storeTime, f.random("store")); err != nil {
		return nil, errors.Join(err, f.close())
	}
	if f.conn, err = f.dial("test", f.broker); err != nil {
		return nil, errors.Join(err, f.close())
	}
	js, err := bus.JetStream(f.conn)
	if err == nil {
		err = bus.Ensure(context.Background(), memory{js}, bus.Options{})
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// memory creates streams in memory, because the broker does not die in a
// simulation.
type memory struct{ jetstream.JetStream }

func (m memory) CreateStream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	cfg.Storage = jetstream.MemoryStorage
	return m.JetStream.CreateStream(ctx, cfg)
}

func (f *fleet) dial(name string, through nats.InProcessConnProvider) (*nats.Conn, error) {
	return natsconn.Connect(natsconn.Config{InProcess: through, Name: name, Log: f.log})
}

// close ends everything and waits for it.
func (f *fleet) close() error {
	for _, n := range f.nodes {
		n.shutDown()
	}
	f.runs.Wait()
	if f.conn != nil {
		f.conn.Close()
	}
	f.broker.Shutdown()
	if f.store == nil {
		return nil
	}
	return f.store.close()
}

func (f *fleet) add(name string, kind check.Kind, h *host) *node {
	n := &node{fleet: f, name: name, kind: kind, host: h, dir: filepath.Join(f.dir, name)}
	f.nodes = append(f.nodes, n)
	return n
}

// start begins a new process of the node, unless one runs.
func (n *node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		return nil
	}
	n.boots++
	p := newPort(n.fleet.broker, n.fleet.random(fmt.Sprintf("%s-%d", n.name, n.boots)))
	p.weather = n.weather
	if m := n.fleet.defect.mangle; m != nil && n.kind == check.Agent {
		p.mangle = func(f *frame) bool { return m(n, f) }
	}
	p.partition(n.cut)
	conn, err := n.fleet.dial(n.name, p)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &role{port: p, conn: conn, stop: stop, died: make(chan struct{}), done: make(chan struct{})}
	run, err := n.role(r)
	if err != nil {
		stop()
		conn.Close()
		return err
	}
	n.process = r
	n.fleet.runs.Go(func() {
		defer close(r.done)
		defer conn.Close()
		if err := run(ctx); err != nil && !r.dead.Load() {
			n.fleet.note("%s ended: %v", n.name, err)
		}
	})
	return nil
}

// role creates the role that the node runs.
func (n *node) role(r *role) (run func(context.Context) error, err error) {
	log := n.fleet.log.WithField("node", n.name)
	if n.kind == check.Agent {
		a, err := agent.New(agent.Config{
			Conn: r.conn, Cloud: int64(n.host.addr.Cloud), Addr: n.host.addr.Addr, DataDir: n.dir, Log: log,
			Crash: n.passed(r),
			Machine: &agent.Machine{
				Wall: n.host.wall, Elapsed: n.host.elapsed,
				Engine: func(cfg operate.Config) (agent.Engine, error) { return newEngine(cfg, n.host, &r.dead), nil },
			},
		})
		if err != nil {
			return nil, err
		}
		return a.Run, nil
	}
	js, err := bus.JetStream(r.conn)
	if err != nil {
		return nil, err
	}
	r.client = n.fleet.store.connect()
	r.client.defect = n.fleet.defect.store
	if n.kind == check.Dispatcher {
		d, err := dispatcher.New(dispatcher.Config{AllowLocalUsers: true, Log: log, Reached: n.passed(r)}, r.client, bus.New(js))
		if err != nil {
			return nil, err
		}
		r.handler = d.Handler()
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	}
	cfg := worker.Config{ID: fmt.Sprintf("%s-%d", n.name, n.boots), Conn: r.conn, Bus: bus.New(js), Store: r.client, Log: log, Reached: n.passed(r)}
	if n.fleet.defect.worker != nil {
		n.fleet.defect.worker(&cfg)
	}
	w, err := worker.New(cfg)
	if err != nil {
		return nil, err
	}
	return w.Run, nil
}

// passed returns the function that a process calls at each point of the code. It
// ends the process at the selected point.
func (n *node) passed(r *role) func(string) {
	return func(point string) {
		n.mu.Lock()
		dies := n.point == point && n.process == r
		if dies {
			n.point = ""
			n.kill(r)
		}
		n.mu.Unlock()
		if dies {
			n.fleet.note("%s died at %s", n.name, point)
		}
	}
}

// crash ends the process at once, regardless of its current work.
func (n *node) crash() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		n.kill(n.process)
	}
}

// kill removes all effects of the process. Its goroutines cannot be ended, so kill
// removes their connections and host. A restarted agent continues with a copy of
// the data that the dead agent wrote. The caller has locked n.mu.
func (n *node) kill(r *role) {
	r.dead.Store(true)
	close(r.died)
	r.port.disconnect(true)
	if r.client != nil {
		r.client.dead.Store(true)
	}
	if n.kind == check.Agent {
		next := filepath.Join(n.fleet.dir, fmt.Sprintf("%s-%d", n.name, n.boots))
		if err := copyFolder(n.dir, next); err != nil {
			n.fleet.note("%s: its folder was not copied: %v", n.name, err)
		}
		n.dir = next
	}
	n.process = nil
	r.stop()
}

// copyFolder copies an agent's data folder. It links the instance file, because the
// agent detects a copy of the folder by the inode of this file.
func copyFolder(from, to string) error {
	journal := filepath.Join(to, "journal")
	if err := os.MkdirAll(journal, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"instance", "machine", "settings", "settings.json"} {
		if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	files, err := os.ReadDir(filepath.Join(from, "journal"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if file.Name() == "reserve" {
			continue // disk reserve, which the next process creates again
		}
		data, err := os.ReadFile(filepath.Join(from, "journal", file.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(journal, file.Name()), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// shutDown stops the process gracefully, and returns when it has ended.
func (n *node) shutDown() {
	n.mu.Lock()
	r := n.process
	n.process = nil
	n.mu.Unlock()
	if r != nil {
		r.stop()
		<-r.done
	}
}

// at lets the process die at a named point of the code.
func (n *node) at(point string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.point = point
}

// set changes the faults of messages, also for later processes.
func (n *node) set(w weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.weather = w
	if n.process != nil {
		n.process.port.set(w)
	}
}

func (n *node) partition(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = on
	if n.process != nil {
		n.process.port.partition(on)
	}
}

func (n *node) disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		n.process.port.disconnect(false)
	}
}

func (n *node) running() *role {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

var errDown = errors.New("connection refused")

// RoundTrip sends the request to the dispatcher named by the host of the URL.
func (f *fleet) RoundTrip(req *http.Request) (*http.Response, error) {
	r := f.named(req.URL.Hostname()).running()
	if r == nil {
		return nil, errDown
	}
	body := []byte{}
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
	}
	served := req.Clone(req.Context())
	served.Body, served.RequestURI, served.RemoteAddr, served.Host = io.NopCloser(bytes.NewReader(body)), req.URL.RequestURI(), "127.0.0.1:1", "localhost"
	answer := httptest.NewRecorder()
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.handler.ServeHTTP(answer, served)
	}()
	select {
	case <-over:
		if !r.dead.Load() {
			return answer.Result(), nil
		}
	case <-r.died:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	return nil, io.ErrUnexpectedEOF
}

func (f *fleet) named(name string) *node {
	for _, n := range f.nodes {
		if n.name == name {
			return n
		}
	}
	return &node{fleet: f, name: name}
}

func (f *fleet) of(kind check.Kind) []*node {
	var all []*node
	for _, n := range f.nodes {
		if n.kind == kind {
			all = append(all, n)
		}
	}
	return all
}
