package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Config of a load. Run, Doors, Hosts, Folder and Marks are required.
type Config struct {
	// Doors are the URLs of the dispatchers; each is asked.
	Doors []string
	// Token is that of an application; empty sends none.
	Token string
	// Transport of all requests; default [http.DefaultTransport].
	Transport http.RoundTripper
	Hosts     []procfleet.Host // that have an agent
	Absent    []procfleet.Host // that have none, for starts that end as unreachable
	// Light are hosts whose agents succeed at everything and run nothing, for
	// tasks of 1,000 to 5,000 items; none leaves these tasks out.
	Light []procfleet.Host
	// Folder is a folder of every host in which the load's programs leave their
	// marks and pid files; it must be there and survive the agent.
	Folder string
	// Marks reads the marks of all hosts, those of one host in the order in
	// which they were written.
	Marks func() ([]Mark, error)
	// Deaths and Wipes return those of [History]; nil says that there were none.
	Deaths, Wipes func() []Loss
	// Publish, if not nil, publishes a request as an event, under its
	// idempotency key. An error means that it may not have been published.
	Publish func(ctx context.Context, key string, body []byte) error
	// Callbacks is an address of this machine that workers reach, at which the
	// load listens for callbacks, such as "127.0.0.1:0"; empty requests none.
	Callbacks string
	// Events, if not nil, returns all events of finished tasks that the broker
	// has.
	Events func(ctx context.Context) ([][]byte, error)

	// Run tells this load's tasks and marks from those of others on the same
	// fleet, which must not have the same; required. Letters and digits.
	Run string
	// Seed is what all submissions are made from.
	Seed uint64
	// Most is how many submissions there are; default 1000.
	Most int
	// Submitters submit at the same time, each one submission after the other;
	// default 3. Pause is how long each rests in between; default 200 ms.
	Submitters int
	Pause      time.Duration
	// Timeout of each task: when silent hosts are given up; default 60 s.
	Timeout time.Duration
	// Between is how long a poller rests after each request; default 100 ms.
	Between time.Duration
	// Patience is how long anything may take that must happen once everything
	// has healed, beyond Timeout; default 120 s.
	Patience time.Duration
	// Unexplained leaves [RuleExplained] to a later call of [History.Explained]. It
	// is for loads in virtual time, which does not pass during a search, however long.
	Unexplained bool
	// Log is told what is under way; default nothing.
	Log func(format string, args ...any)
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Transport == nil {
		c.Transport = http.DefaultTransport
	}
	if c.Most == 0 {
		c.Most = 1000
	}
	if c.Submitters == 0 {
		c.Submitters = 3
	}
	if c.Pause == 0 {
		c.Pause = 200 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.Between == 0 {
		c.Between = 100 * time.Millisecond
	}
	if c.Patience == 0 {
		c.Patience = 2 * time.Minute
	}
	none := func() []Loss { return nil }
	if c.Deaths == nil {
		c.Deaths = none
	}
	if c.Wipes == nil {
		c.Wipes = none
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	return c
}

// Validate reports everything that is missing.
func (c Config) Validate() error {
	var errs []error
	if len(c.Doors) == 0 {
		errs = append(errs, errors.New("a load needs at least one dispatcher"))
	}
	if len(c.Hosts) == 0 {
		errs = append(errs, errors.New("a load needs at least one host with an agent"))
	}
	if c.Run == "" {
		errs = append(errs, errors.New("a load needs a name for its run"))
	}
	if c.Folder == "" || c.Marks == nil {
		errs = append(errs, errors.New("a load needs a folder on the hosts and a way to read the marks in it"))
	}
	return errors.Join(errs...)
}

// Load submits operations to a fleet and follows what becomes of them, while
// others break the fleet. [Start] begins it, [Load.Settle] ends and judges it.
type Load struct {
	cfg     Config
	log     *record
	doors   []door           // each dispatcher by itself, asked once
	clients []*client.Client // of submitters: all dispatchers, each submitter's own first
	calls   *callbacks       // nil if none are requested

	stop       context.CancelFunc // no more submissions
	abandon    context.CancelFunc // of those that are under way
	submitters sync.WaitGroup
	stopPolls  context.CancelFunc
	pollers    sync.WaitGroup

	mu   sync.Mutex
	plan *plan
}

// door is one dispatcher.
type door struct {
	url    string
	client *client.Client
	// keyless sends submissions without their idempotency keys.
	keyless *client.Client
}

// Start begins a load. It goes on until Settle, Stop, or the end of ctx, or
// until it has made [Config.Most] submissions; then tasks are still followed.
func Start(ctx context.Context, cfg Config) (*Load, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Load{cfg: cfg, log: newRecord(cfg.Run), plan: newPlan(&cfg)}
	if _, err := booted(); err != nil {
		return nil, err
	}
	if err := l.connect(); err != nil {
		return nil, err
	}
	if cfg.Callbacks != "" {
		var err error
		if l.calls, err = listen(cfg.Callbacks, l.log); err != nil {
			return nil, err
		}
	}
	working, abandon := context.WithCancel(ctx)
	submitting, stop := context.WithCancel(working)
	polling, stopPolls := context.WithCancel(ctx)
	l.stop, l.abandon, l.stopPolls = stop, abandon, stopPolls
	for n := range cfg.Submitters {
		l.submitters.Go(func() { l.submit(submitting, working, n) })
	}
	for n := range pollers {
		l.pollers.Go(func() { l.poll(polling, n) })
	}
	return l, nil
}

// connect makes the clients.
func (l *Load) connect() error {
	const oneAttempt = 10 * time.Second
	for i := range l.cfg.Doors {
		url := l.cfg.Doors[i]
		once, err := client.New(client.Config{
			URL: url, Token: l.cfg.Token, Timeout: oneAttempt, Patience: -1, HTTP: &http.Client{Transport: l.cfg.Transport},
		})
		if err != nil {
			return fmt.Errorf("dispatcher %q: %w", url, err)
		}
		keyless, err := client.New(client.Config{
			URL: url, Token: l.cfg.Token, Timeout: oneAttempt, Patience: -1,
			HTTP: &http.Client{Transport: &eavesdropper{next: l.cfg.Transport, log: l.log, dropKey: true}},
		})
		if err != nil {
			return err
		}
		l.doors = append(l.doors, door{url, once, keyless})
	}
	for n := range l.cfg.Submitters {
		c, err := client.New(client.Config{
			URL: rotated(l.cfg.Doors, n), Token: l.cfg.Token, Timeout: oneAttempt,
			HTTP: &http.Client{Transport: &eavesdropper{next: l.cfg.Transport, log: l.log}},
		})
		if err != nil {
			return err
		}
		l.clients = append(l.clients, c)
	}
	return nil
}

// rotated joins the doors with the n-th first.
func rotated(doors []string, n int) string {
	n %= len(doors)
	return strings.Join(slices.Concat(doors[n:], doors[:n]), ",")
}

// Failover notes that from now on the store may fail over, so that what it
// shows may go back, until the function that it returns is called. It is for
// before the fault, and the function for when everything has healed.
func (l *Load) Failover() (over func()) {
	// What was read a moment before may not have been confirmed yet.
	const moment = 5 * time.Second
	return l.log.failover(time.Now().Add(-moment))
}

// submit makes one submission after the other until submitting ends; working
// is how long one that is under way is repeated.
func (l *Load) submit(submitting, working context.Context, n int) {
	for {
		s := l.next()
		if s == nil {
			return
		}
		id, err := l.send(working, n, l.log.submitted(s, l.cfg.Timeout), s)
		l.log.answered(s, id, err)
		select {
		case <-submitting.Done():
			return
		case <-time.After(l.cfg.Pause):
		}
	}
}

// next is the next submission, nil if there are enough.
func (l *Load) next() *Submission {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan.made >= l.cfg.Most {
		return nil
	}
	return l.plan.next()
}

// Of so many submissions one is also sent again after it was accepted, at
// another dispatcher, and one is published as an event first.
const (
	againEvery = 4
	eventEvery = 5
)

// send submits the submission of this number until there is an answer for good.
func (l *Load) send(ctx context.Context, n, number int, s *Submission) (procfleet.TaskID, error) {
	request := l.request(s)
	if s.Keyless {
		return l.doors[number%len(l.doors)].keyless.Submit(ctx, request)
	}
	if l.cfg.Publish != nil && number%eventEvery == 0 {
		if err := l.publish(ctx, &request); err != nil {
			l.cfg.Log("submission %s not published: %v", s.Key, err)
		}
	}
	id, err := l.clients[n].Submit(ctx, request)
	if err == nil && number%againEvery == 0 {
		if _, err := l.clients[(n+1)%len(l.clients)].Submit(ctx, request); err != nil { // the record has the answers
			l.cfg.Log("submission %s again: %v", s.Key, err)
		}
	}
	return id, err
}

// request is a submission as it is sent.
func (l *Load) request(s *Submission) client.Submission {
	r := client.Submission{IdempotencyKey: s.Key, Business: l.log.h.business(s), Timeout: procfleet.Duration(l.cfg.Timeout)}
	if s.Callback {
		r.Callback = l.calls.url(s)
	}
	for _, a := range s.Asks {
		r.Operations = append(r.Operations, client.Operation{Action: a.Action, Process: a.spec(l.cfg.Folder), Hosts: a.Hosts})
	}
	return r
}

// publish sends a request as an event, for a short while: the submission that
// follows makes sure.
func (l *Load) publish(ctx context.Context, request *client.Submission) error {
	const short = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, short)
	defer cancel()
	body, err := request.MarshalJSON()
	if err != nil {
		return err
	}
	return l.cfg.Publish(ctx, request.IdempotencyKey, body)
}

// Stop ends a load at once, whatever is under way.
func (l *Load) Stop() {
	l.stop()
	l.abandon()
	l.submitters.Wait()
	l.stopPolls()
	l.pollers.Wait()
	l.calls.close()
	closeIdle(l.cfg.Transport)
}

func closeIdle(t http.RoundTripper) {
	if c, ok := t.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// eavesdropper notes every answer to a submission. Some it keeps from the
// client, as a connection does that breaks.
type eavesdropper struct {
	next http.RoundTripper
	log  *record
	// dropKey sends requests without their idempotency keys.
	dropKey bool
}

// keptEvery is how many accepted submissions there are for one whose answer is
// lost.
const keptEvery = 10

var errKept = errors.New("the connection broke, as the load wants it to now and then")

func (e *eavesdropper) RoundTrip(req *http.Request) (*http.Response, error) {
	const header = "Idempotency-Key"
	key := req.Header.Get(header)
	if e.dropKey {
		req = req.Clone(req.Context())
		req.Header.Del(header)
	}
	asked := time.Now()
	resp, err := e.next.RoundTrip(req)
	if err != nil || key == "" {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		return nil, err
	}
	a := newAnswer(key, req.URL.Host, resp.StatusCode, body)
	a.Span = Span{asked, time.Now()}
	if accepted := e.log.answer(a); accepted%keptEvery == 1 {
		return nil, errKept
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}
