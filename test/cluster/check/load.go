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

// Config of a load. Run, Dispatchers, Hosts, Folder and Marks are required.
type Config struct {
	// Dispatchers are the URLs of the dispatchers; the load uses all of them.
	Dispatchers []string
	// Token authenticates an application; empty sends none.
	Token string
	// Transport of all requests; default [http.DefaultTransport].
	Transport http.RoundTripper
	Hosts     []procfleet.Host // hosts with an agent
	Absent    []procfleet.Host // hosts without an agent, for starts that end as unreachable
	// Light are hosts of simulated agents, which report success and run nothing,
	// for tasks of 1,000 to 5,000 items. Without them there are no such tasks.
	Light []procfleet.Host
	// Folder is an existing folder on every host into which the load's programs
	// write their marks and pid files. It must survive the agent.
	Folder string
	// Marks reads the marks of all hosts, those of one host in the order of
	// writing.
	Marks func() ([]Mark, error)
	// Deaths and Wipes return the values of [History]; nil means none.
	Deaths, Wipes func() []Loss
	// Publish, if not nil, publishes a request to procfleet.submit under its
	// idempotency key. After an error the request may or may not be published.
	Publish func(ctx context.Context, key string, body []byte) error
	// Callbacks is the address on this machine at which the load receives
	// callbacks and the requests of a webhook, such as "127.0.0.1:0". If it is empty, no
	// submission requests a callback, and there is no webhook.
	Callbacks string
	// Events, if not nil, returns all events of tasks of the broker, in their order.
	Events func(ctx context.Context) ([][]byte, error)

	// Run distinguishes this load's tasks and marks from those of other loads on
	// the same fleet, and must be unique. Letters and digits.
	Run string
	// Seed determines all submissions.
	Seed uint64
	// Most is the maximum number of submissions; default 1000.
	Most int
	// Submitters is the number of concurrent submitters, each with one submission
	// at a time; default 3. Pause is the pause of a submitter between submissions;
	// default 200 ms.
	Submitters int
	Pause      time.Duration
	// Timeout of each task; default 60 s.
	Timeout time.Duration
	// Between is the pause of a poller after each request; default 100 ms.
	Between time.Duration
	// Patience is the maximum time, in addition to Timeout, for everything that
	// must happen after all faults have ended; default 120 s.
	Patience time.Duration
	// Unexplained leaves [RuleExplained] to a later call of [History.Explained].
	// Loads in virtual time need this, because that time does not pass during a
	// search.
	Unexplained bool
	// Rollouts makes rollouts of some tasks.
	Rollouts bool
	// Log receives progress messages; default none.
	Log func(format string, args ...any)
}

// WithDefaults returns a copy with defaults filled in.
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

// Validate reports all missing fields.
func (c Config) Validate() error {
	var errs []error
	if len(c.Dispatchers) == 0 {
		errs = append(errs, errors.New("no dispatcher"))
	}
	if len(c.Hosts) == 0 {
		errs = append(errs, errors.New("no host with an agent"))
	}
	if c.Run == "" {
		errs = append(errs, errors.New("no name of the run"))
	}
	if c.Folder == "" || c.Marks == nil {
		errs = append(errs, errors.New("no folder on the hosts, or no function that reads the marks"))
	}
	return errors.Join(errs...)
}

// Load submits operations to a fleet and polls their tasks while the caller causes
// faults. [Start] begins it, [Load.Settle] ends it and checks its history.
type Load struct {
	cfg         Config
	log         *record
	dispatchers []dispatcher     // one for each dispatcher, without retries
	clients     []*client.Client // one for each submitter, with all dispatchers and a different first one
	calls       *callbacks       // nil if no callback is requested

	stop       context.CancelFunc // ends new submissions
	abandon    context.CancelFunc // ends submissions in progress
	submitters sync.WaitGroup
	controls   sync.WaitGroup // pauses, cancels and retries
	stopPolls  context.CancelFunc
	pollers    sync.WaitGroup

	mu   sync.Mutex
	plan *plan
}

// dispatcher is one dispatcher.
type dispatcher struct {
	url    string
	client *client.Client
	// keyless sends submissions without their idempotency keys.
	keyless *client.Client
}

// Start begins a load. It submits until Settle, Stop, the end of ctx or
// [Config.Most] submissions; it polls tasks until Settle, Stop or the end of ctx.
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
		if err := l.follow(ctx); err != nil {
			l.calls.close()
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

// connect creates the clients.
func (l *Load) connect() error {
	const oneAttempt = 10 * time.Second
	for i := range l.cfg.Dispatchers {
		url := l.cfg.Dispatchers[i]
		once, err := client.New(client.Config{
			URL: url, Token: l.cfg.Token, Timeout: oneAttempt, Patience: -1, HTTP: &http.Client{Transport: l.cfg.Transport},
		})
		if err != nil {
			return fmt.Errorf("dispatcher %q: %w", url, err)
		}
		keyless, err := client.New(client.Config{
			URL: url, Token: l.cfg.Token, Timeout: oneAttempt, Patience: -1,
			HTTP: &http.Client{Transport: &recordingTransport{next: l.cfg.Transport, log: l.log, dropKey: true}},
		})
		if err != nil {
			return err
		}
		l.dispatchers = append(l.dispatchers, dispatcher{url, once, keyless})
	}
	for n := range l.cfg.Submitters {
		c, err := client.New(client.Config{
			URL: rotated(l.cfg.Dispatchers, n), Token: l.cfg.Token, Timeout: oneAttempt,
			HTTP: &http.Client{Transport: &recordingTransport{next: l.cfg.Transport, log: l.log}},
		})
		if err != nil {
			return err
		}
		l.clients = append(l.clients, c)
	}
	return nil
}

// rotated joins the URLs with the n-th first.
func rotated(dispatchers []string, n int) string {
	n %= len(dispatchers)
	return strings.Join(slices.Concat(dispatchers[n:], dispatchers[:n]), ",")
}

// Failover records that the store may fail over from now until the caller calls
// over, so that observations may be lost. Call it before the fault, and over after
// all faults have ended.
func (l *Load) Failover() (over func()) {
	// Observations of the last moments may be unconfirmed.
	const moment = 5 * time.Second
	return l.log.failover(time.Now().Add(-moment))
}

// StepBack records that the store's clock steps back now, after which tasks have twice
// their time to end.
func (l *Load) StepBack() { l.log.stepBack(time.Now()) }

// submit sends one submission after the other until submitting ends. working limits
// the repeats of a submission in progress.
func (l *Load) submit(submitting, working context.Context, n int) {
	for {
		s := l.next()
		if s == nil {
			return
		}
		number := l.log.submitted(s, l.cfg.Timeout)
		id, err := l.send(working, n, number, s)
		l.log.setOutcome(s, id, err)
		if id != "" && number%pauseEvery == 0 {
			l.controls.Go(func() { l.pause(submitting, working, l.clients[n], id) })
		}
		if id != "" && number%cancelEvery == 0 {
			l.controls.Go(func() { l.cancel(working, l.clients[n], id, s.Operations[0].Hosts[0]) })
		}
		if id != "" && s.runsNothing() {
			l.controls.Go(func() { l.retry(working, l.clients[n], id) })
		}
		select {
		case <-submitting.Done():
			return
		case <-time.After(l.cfg.Pause):
		}
	}
}

// next returns the next submission, or nil if there are enough.
func (l *Load) next() *Submission {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan.made >= l.cfg.Most {
		return nil
	}
	return l.plan.next()
}

// againEvery is the number of submissions per submission that is sent again to
// another dispatcher after its acceptance, and eventEvery the number per
// submission that is first published over NATS.
const (
	againEvery = 4
	eventEvery = 5
)

// send sends the n-th submitter's submission until there is a final response.
func (l *Load) send(ctx context.Context, n, number int, s *Submission) (procfleet.TaskID, error) {
	request := l.request(s)
	if s.Keyless {
		return l.dispatchers[number%len(l.dispatchers)].keyless.Submit(ctx, request)
	}
	if l.cfg.Publish != nil && number%eventEvery == 0 {
		if err := l.publish(ctx, &request); err != nil {
			l.cfg.Log("submission %s not published: %v", s.Key, err)
		}
	}
	id, err := l.clients[n].Submit(ctx, request)
	if err == nil && number%againEvery == 0 {
		if _, err := l.clients[(n+1)%len(l.clients)].Submit(ctx, request); err != nil { // the record has the responses
			l.cfg.Log("repeat of submission %s: %v", s.Key, err)
		}
	}
	return id, err
}

// ramp has the stages of a rollout before its last.
func ramp() (stages []procfleet.Amount) {
	for _, text := range []string{"1", "25%"} {
		a, _ := procfleet.ParseAmount(text) // a constant is valid
		stages = append(stages, a)
	}
	return stages
}

// request returns the request of a submission.
func (l *Load) request(s *Submission) client.Submission {
	r := client.Submission{IdempotencyKey: s.Key, Business: l.log.h.business(s), Timeout: procfleet.Duration(l.cfg.Timeout)}
	if s.Callback {
		r.Callback = l.calls.url(s)
	}
	if s.Window > 0 {
		r.Rollout = &procfleet.RolloutPolicy{Max: s.Window, Zones: s.Zones}
		if s.Ramp {
			r.Rollout.Ramp = ramp()
		}
		if s.Budget {
			none, _ := procfleet.ParseAmount("0")
			r.Rollout.MaxFailures, r.Rollout.OnFailure = &none, procfleet.OnFailureCancel
		}
	}
	if s.Queue > 0 {
		r.Queue = &procfleet.HostQueue{For: procfleet.Duration(s.Queue), Coalesce: s.Coalesce}
	}
	for _, a := range s.Operations {
		r.Operations = append(r.Operations, client.Operation{Action: a.Action, Process: a.spec(l.cfg.Folder), Hosts: a.Hosts})
	}
	return r
}

// Release submits a rollout on all simulated agents, and returns when it has released more hosts than
// its window.
func (l *Load) Release(ctx context.Context, window int) error {
	l.mu.Lock()
	s := l.plan.release(window)
	l.mu.Unlock()
	l.log.submitted(s, l.cfg.Timeout)
	id, err := l.clients[0].Submit(ctx, l.request(s))
	l.log.setOutcome(s, id, err)
	for err == nil {
		var t client.Task
		if t, err = l.dispatchers[0].client.Task(ctx, id); err == nil && t.Rollout.Released > window {
			l.cfg.Log("rollout %s: %d of %d hosts released", id, t.Rollout.Released, t.Rollout.Hosts)
			return nil
		}
		if err == nil {
			err = rest(ctx, l.cfg.Between)
		}
	}
	return err
}

// publish publishes a request for a short time; the submission that follows ensures
// its acceptance.
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

// Stop ends a load at once, with all work in progress.
func (l *Load) Stop() {
	l.stop()
	l.abandon()
	l.submitters.Wait()
	l.controls.Wait()
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

// recordingTransport records every response to a submission. It hides some responses from
// the client, like a broken connection.
type recordingTransport struct {
	next http.RoundTripper
	log  *record
	// dropKey sends requests without their idempotency keys.
	dropKey bool
}

// hiddenEvery is the number of accepted submissions per lost response.
const hiddenEvery = 10

var errHidden = errors.New("connection closed by the load before the response")

func (e *recordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
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
	a := newResponse(key, req.URL.Host, resp.StatusCode, body)
	a.Span = Span{asked, time.Now()}
	if accepted := e.log.addResponse(a); accepted%hiddenEvery == 1 {
		return nil, errHidden
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}
