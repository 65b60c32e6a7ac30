package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agent/local"
	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/natsconn"
)

// overseer runs one agent and acts as its server.
type overseer struct {
	*site
	argv    []string // command of the agent without its flags
	url     string   // NATS URL
	conn    *nats.Conn
	results chan *agentproto.Results // results that were received and acknowledged
	status  string                   // address of the agent's status listener
	tasks   int64
	seen    map[resultID]bool // results already counted; a restarted agent sends some results again
}

type resultID struct {
	task string
	item int
}

var overseen = netip.MustParseAddr("127.0.0.1")

const (
	agentName   = "agent"
	itemsAtOnce = 200 // operations per command; a message is limited to 1 MiB
	resultsLane = "s"
	maxMessages = 64 << 10 // capacity of the channel of received results
)

// newOverseer starts and connects to NATS. It does not start the agent.
func newOverseer(ctx context.Context, at *site, argv []string, log logrus.FieldLogger) (o *overseer, err error) {
	o = &overseer{site: at, argv: argv, results: make(chan *agentproto.Results, maxMessages), seen: map[resultID]bool{}}
	line, err := at.start(ctx, natsServer, at.self, []string{"nats-server", "--listen", "127.0.0.1:0", "--data", filepath.Join(at.dir, "nats"), "--log-level", "warn"}, "url ")
	if err != nil {
		return nil, err
	}
	o.url = line[len("url "):]
	if o.conn, err = natsconn.Connect(natsconn.Config{URL: o.url, Name: "bench", Log: log}); err != nil {
		return nil, err
	}
	if _, err = o.conn.Subscribe(agentproto.ResultSubject(resultsLane, 0), o.receive); err == nil {
		_, err = o.conn.Subscribe(agentproto.PresenceSubject(0), sendTime)
	}
	if err == nil {
		_, err = o.conn.Subscribe(agentproto.EventSubject(0), acknowledgeEvent)
	}
	if err != nil {
		o.conn.Close()
		return nil, err
	}
	return o, nil
}

// sendTime replies to an announcement as a worker does. Before this reply, which contains
// the server's time, an agent accepts no commands.
func sendTime(msg *nats.Msg) {
	now := time.Now().UTC()
	data, err := agentproto.Encode(&agentproto.PresenceReply{
		Header: agentproto.Header{Type: agentproto.TypePresenceReply, ID: uuid.NewString(), Sent: now}, ServerTime: now,
	})
	if err == nil {
		_ = msg.Respond(data) // without a reply the agent announces itself again
	}
}

// receive forwards results to o.results and replies with a receipt as a worker does.
func (o *overseer) receive(msg *nats.Msg) {
	var m agentproto.Results
	if agentproto.Decode(msg.Data, agentproto.TypeResults, &m) != nil {
		return // await reports missing results
	}
	receipt := agentproto.Receipt{Task: m.Task}
	for _, r := range m.Results {
		receipt.Stored = append(receipt.Stored, r.Item)
	}
	o.results <- &m
	sendReceipt(msg, &receipt)
}

// acknowledgeEvent discards an event and replies with a receipt as a worker does.
func acknowledgeEvent(msg *nats.Msg) {
	if _, id, err := agentproto.Peek(msg.Data); err == nil {
		sendReceipt(msg, &agentproto.Receipt{Event: id})
	}
}

// sendReceipt replies to results or an event. Without a receipt the agent sends the
// message again.
func sendReceipt(msg *nats.Msg, receipt *agentproto.Receipt) {
	receipt.Header = agentproto.Header{Type: agentproto.TypeReceipt, ID: uuid.NewString(), Sent: time.Now().UTC()}
	if data, err := agentproto.Encode(receipt); err == nil {
		_ = msg.Respond(data)
	}
}

func (o *overseer) data() string { return filepath.Join(o.dir, agentName) }

// startAgent starts the agent and returns the time until the agent is ready, when it has
// checked every supervised process and accepts commands.
func (o *overseer) startAgent(ctx context.Context) (time.Duration, error) {
	port, err := freePort(ctx)
	if err != nil {
		return 0, err
	}
	o.status = "127.0.0.1:" + port
	args := append(o.argv[1:len(o.argv):len(o.argv)], "--nats", o.url, "--ip", overseen.String(), "--data", o.data(),
		"--status-http", o.status, "--log-level", "warn")
	begun := time.Now()
	if _, err := o.start(ctx, agentName, o.argv[0], args, ""); err != nil {
		return 0, err
	}
	err = until(ctx, "the agent is ready", time.Millisecond, func() bool { return o.ready(ctx) })
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, tail(o.agent().log))
	}
	return time.Since(begun), nil
}

func (o *overseer) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+o.status+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

func (o *overseer) agent() *child { return o.child(agentName) }

// killAgent kills the agent without a graceful stop, to simulate a crash.
func (o *overseer) killAgent() error {
	c := o.agent()
	if err := c.cmd.Process.Kill(); err != nil {
		return err
	}
	<-c.done
	return nil
}

// operate sends n operations, in turn on each of processes, with one or several operations
// per command. It returns the time until all results are received.
func (o *overseer) operate(ctx context.Context, action string, processes []sleeper, n int) (time.Duration, error) {
	begun := time.Now()
	left := n
	for first := 0; first < n; {
		offset := first % len(processes)
		size := min(itemsAtOnce, n-first, len(processes)-offset)
		answered, err := o.send(ctx, action, processes[offset:offset+size])
		if err != nil {
			return 0, err
		}
		left -= answered
		first += size
	}
	if err := o.await(ctx, action, left); err != nil {
		return 0, err
	}
	return time.Since(begun), nil
}

// send sends one command with an operation per process and returns the number of results
// in the reply. It returns an error if an operation failed.
func (o *overseer) send(ctx context.Context, action string, processes []sleeper) (answered int, err error) {
	o.tasks++
	c := &agentproto.Command{
		Header: agentproto.Header{Type: agentproto.TypeCommand, ID: uuid.NewString(), Sent: time.Now().UTC()},
		Task:   "bench-" + strconv.FormatInt(o.tasks, 10), Lane: resultsLane, Host: "0:" + overseen.String(), AcceptBefore: time.Now().Add(patience),
	}
	for i, p := range processes {
		spec := p.spec(o.account)
		if action == agentproto.ActionReload { // as in the floor, do not check the process after the command
			spec.StartCheckBeginMS, spec.StartCheckEndMS = 0, 0
		}
		text, err := json.Marshal(spec)
		if err != nil {
			return 0, err
		}
		c.Specs = append(c.Specs, text)
		c.Items = append(c.Items, agentproto.CommandItem{Item: i, Action: action, Spec: i, Fence: o.tasks})
	}
	data, err := agentproto.Encode(c)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := o.conn.RequestWithContext(ctx, agentproto.AgentSubject(0, overseen), data)
	if err != nil {
		return 0, fmt.Errorf("%s: no reply of the agent: %w", action, err)
	}
	var reply agentproto.Reply
	if err := agentproto.Decode(msg.Data, agentproto.TypeReply, &reply); err != nil {
		return 0, err
	}
	if reply.Refused != "" {
		return 0, fmt.Errorf("%s: refused: %s", action, reply.Message)
	}
	for _, item := range reply.Items {
		if item.Result == nil {
			continue
		}
		if item.Result.Code != agentproto.CodeSuccess {
			return 0, fmt.Errorf("%s: %s", action, item.Result.Message)
		}
		answered++
	}
	return answered, nil
}

// await waits for the results of n operations. It returns an error if an operation failed.
func (o *overseer) await(ctx context.Context, action string, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*patience, fmt.Errorf("%s: some of %d results are missing after %v", action, n, 5*patience))
	defer cancel()
	for all := len(o.seen) + n; len(o.seen) < all; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m := <-o.results:
			for _, r := range m.Results {
				if r.Code != agentproto.CodeSuccess {
					return fmt.Errorf("%s: %s", action, r.Message)
				}
				o.seen[resultID{m.Task, r.Item}] = true
			}
		}
	}
	return nil
}

// query returns the processes of the agent with the data directory data.
func query(ctx context.Context, data string) (map[string]local.Process, error) {
	a, err := local.Query(ctx, data)
	if err != nil {
		return nil, err
	}
	known := make(map[string]local.Process, len(a.Processes))
	for _, p := range a.Processes {
		known[p.Key] = p
	}
	return known, nil
}

// running waits until the agent has n running processes and returns them.
func running(ctx context.Context, data string, n int) (map[string]local.Process, error) {
	var known map[string]local.Process
	err := until(ctx, fmt.Sprintf("%d processes run", n), 50*time.Millisecond, func() bool {
		var err error
		if known, err = query(ctx, data); err != nil || len(known) != n {
			return false
		}
		for _, p := range known {
			if p.PID == 0 || p.State != "running" {
				return false
			}
		}
		return true
	})
	return known, err
}
