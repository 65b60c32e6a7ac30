package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/testenv"
	"github.com/procfleet/procfleet/internal/testenv/agenttest"
)

// greeting is the first message of a NATS server.
const greeting = `INFO {"server_id":"S","version":"2.11.0","proto":1,"headers":true,"max_payload":1048576}` + "\r\n"

// impostor replaces a NATS server. It applies one trick per connection, the last
// one to all further connections.
type impostor struct {
	url    string
	tricks []func(net.Conn)
	met    atomic.Int64 // number of connections
}

func startImpostor(t *testing.T, tricks ...func(net.Conn)) *impostor {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nothing depends on it
	i := &impostor{url: "nats://" + listener.Addr().String(), tricks: tricks}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			trick := tricks[min(int(i.met.Add(1)), len(tricks))-1]
			go func() {
				defer func() { _ = conn.Close() }()
				trick(conn)
			}()
		}
	}()
	return i
}

// says returns a trick that writes words and closes the connection.
func says(words ...string) func(net.Conn) {
	return func(conn net.Conn) {
		for _, w := range words {
			if _, err := io.WriteString(conn, w); err != nil {
				return // the client closed the connection
			}
		}
	}
}

// answers returns a trick that accepts a client, and then sends words for each
// subscription, with its number in place of SID.
func answers(words string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.WriteString(conn, greeting) // the client may have closed the connection
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			said := lines.Text()
			if said == "PING" {
				_, _ = io.WriteString(conn, "PONG\r\n")
			}
			if subscribed := strings.Fields(said); len(subscribed) > 2 && subscribed[0] == "SUB" {
				_, _ = io.WriteString(conn, strings.ReplaceAll(words, "SID", subscribed[len(subscribed)-1]))
			}
		}
	}
}

// message returns a message of a NATS server.
func message(subject, sid, reply, body string) string {
	return fmt.Sprintf("MSG %s %s %s %d\r\n%s\r\n", subject, sid, reply, len(body), body)
}

// TestHostileBroker checks that an agent continues to run and to supervise with any peer
// in place of its broker. Agents share the tricks, because they reconnect with increasing
// delays.
func TestHostileBroker(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	nats := testenv.StartNATS(t)
	const agents = 3
	for i := range agents {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			h := agenttest.New(t, nats)
			tricks := hostileTricks(h.Name())
			var mine []func(net.Conn)
			for n := i; n < len(tricks); n += agents {
				mine = append(mine, tricks[n])
			}
			outlasts(t, h, mine)
		})
	}
}

// hostileTricks are the ways in which brokers mistreat the agent of a host.
func hostileTricks(host string) []func(net.Conn) {
	deep := strings.Repeat(`{"a":`, 100_000)
	command := fmt.Sprintf(`{"type":%q,"id":"i","task":"GSETASK:20260101000000:000001","lane":"s","host":%q,"items":`, agentproto.TypeCommand, host)
	return []func(net.Conn){
		says("\x00\xff\xfe\x16\x03\x01 no NATS at all\r\n"),
		says("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
		says("INFO no JSON\r\n"),
		says("INFO " + deep + "\r\n"),
		says("INFO ", strings.Repeat("a", 16<<20)), // a line without an end
		says(strings.Replace(greeting, `"2.11.0"`, `{"of":["none"]}`, 1)),
		says(strings.Replace(greeting, `1048576`, `-1,"connect_urls":["`+strings.Repeat("x", 1<<20)+`"],"nonce":7,"tls_required":"yes"`, 1)),
		says(greeting, "-ERR '"+strings.Repeat("no ", 100_000)+"'\r\n"),
		says(greeting, "+OK\r\n", "PONG\r\nPONG\r\nPONG\r\n", "MSG\r\n"),
		answers(message("procfleet.agent.9.9-9-9-9", "4711", "r", "no recipient") + "BREAK\r\n"),
		answers(message("procfleet.>", "SID", "r", command+deep) + "BREAK\r\n"),
		answers(message("a..b", "SID", "", command+`[`+strings.Repeat("{},", 300_000)+`{}]}`) + "BREAK\r\n"),
		answers("HMSG s SID 12 12\r\nNATS/1.0 x\r\n\r\nHMSG s SID 99 1\r\n"),
		answers("MSG s SID -1\r\n"),
		answers(message("procfleet.settingschanged", "SID", "", strings.Repeat("\xff", 1<<20)) + message("s", "SID", "no reply", "") + "BREAK\r\n"),
		says(greeting, strings.Repeat("PING\r\n", 10_000)),
		func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, // sends nothing
	}
}

// outlasts checks that an agent supervises its process through all tricks, and works with a
// broker again.
func outlasts(t *testing.T, h *agenttest.Host, tricks []func(net.Conn)) {
	t.Helper()
	h.Start()
	p := h.Sleeper()
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	h.Agent.Kill()

	hostile := startImpostor(t, tricks...)
	url := h.URL
	h.URL = hostile.url
	h.Launch()
	// The client may leave a connection open until the garbage collector finds it, so the next
	// connection is the sign that a trick is over.
	testenv.Eventually(t, 3*agenttest.Patience, func() bool { return hostile.met.Load() > int64(len(tricks)) }, "the agent outlasts every trick")
	ended := p.PID()
	h.End(ended)
	pid := 0 // PID returns 0 while the process executes its program
	testenv.Eventually(t, agenttest.Patience, func() bool {
		pid = p.PID()
		return p.Starts() == 2 && pid != 0 && pid != ended
	}, "the process is restarted")
	select {
	case <-h.Agent.Done():
		t.Fatal("the agent has ended")
	default:
	}

	h.Stop()
	h.URL = url
	h.Start()
	if s := h.Status(p.Spec); !s.Supervised || s.PID != pid || p.Starts() != 2 {
		t.Errorf("reconnected: pid was %d, %d starts, status is %+v", pid, p.Starts(), s)
	}
}

// TestBrokerThatEndsAgents checks that a compromised broker can end agents, but not
// their processes. Processes continue to run, and the next agent adopts them.
func TestBrokerThatEndsAgents(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	h := agenttest.New(t, testenv.StartNATS(t))
	h.Start()
	p := h.Sleeper()
	h.Expect("start", p.Spec, agentproto.CodeSuccess, "")
	pid, url := p.PID(), h.URL
	for what, trick := range map[string]func(net.Conn){
		"a length beyond memory": answers("MSG s SID 9223372036854775807\r\nx"),
		"the end for good":       answers("-ERR 'Maximum Payload Violation'\r\n"),
	} {
		h.Agent.Kill()
		h.URL = startImpostor(t, trick).url
		h.Launch()
		if code := h.Agent.Wait(t, agenttest.Patience); code <= 0 {
			t.Errorf("%s: exit code %d of the agent", what, code)
		}
		if p.PID() != pid || !agenttest.Alive(pid) {
			t.Errorf("%s: the process %d has ended too", what, pid)
		}
		h.URL = url
		h.Start()
		if s := h.Status(p.Spec); !s.Supervised || s.PID != pid || p.Starts() != 1 {
			t.Errorf("%s: pid was %d, %d starts, status is %+v", what, pid, p.Starts(), s)
		}
	}
	h.End(pid)
	h.Becomes(p.Spec, "an adopted process is started again", func(s agentproto.Status) bool { return s.Running && s.PID != pid && p.Starts() == 2 })
}
