//go:build linux

package fleet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// delay delays the packets that iptables puts into a queue of a container's network
// namespace. `tc netem` does the same, but the kernels of many small virtual
// machines lack it and have this queue.
type delay struct {
	rules  [][]string // arguments of iptables, without the verb
	socket int
	stop   chan struct{} // closed to send the delayed packets and end
	done   chan struct{} // closed at the end
}

// Constants of the kernel's nfnetlink_queue (linux/netfilter/nfnetlink_queue.h).
const (
	queueNumber = 7

	queueSubsystem  = 3 << 8         // NFNL_SUBSYS_QUEUE
	messagePacket   = queueSubsystem // its first message
	messageVerdict  = queueSubsystem | 1
	messageConfig   = queueSubsystem | 2
	attrPacket      = 1 // NFQA_PACKET_HDR
	attrVerdict     = 2 // NFQA_VERDICT_HDR
	attrCommand     = 1 // NFQA_CFG_CMD
	attrParams      = 2 // NFQA_CFG_PARAMS
	attrLength      = 3 // NFQA_CFG_QUEUE_MAXLEN
	commandBind     = 1
	copyMeta        = 1
	accept          = 1 // NF_ACCEPT
	queueLength     = 1 << 16
	netlinkHeader   = 16
	generalHeader   = 4 // struct nfgenmsg
	attributeHeader = 4
)

// delayRules returns the iptables rules that put packets to the others into the
// queue, or all packets if there are no others.
func delayRules(others []*Node) [][]string {
	target := []string{"-j", "NFQUEUE", "--queue-num", strconv.Itoa(queueNumber), "--queue-bypass"}
	if len(others) == 0 {
		return [][]string{append([]string{"OUTPUT", "!", "-o", "lo"}, target...)}
	}
	var rules [][]string
	for _, o := range others {
		rules = append(rules, append([]string{"OUTPUT", "-d", o.IP}, target...))
	}
	return rules
}

// startDelay begins to delay the packets in the queue of a process's network
// namespace.
func startDelay(pid string, d, jitter time.Duration) (*delay, error) {
	socket, err := queueSocket(pid)
	if err != nil {
		return nil, err
	}
	s := &delay{socket: socket, stop: make(chan struct{}), done: make(chan struct{})}
	held := make(chan packet, queueLength)
	go func() {
		defer close(held)
		s.receive(held, d, jitter)
	}()
	go func() {
		defer close(s.done)
		s.pass(held)
	}()
	return s, nil
}

// close sends the delayed packets and ends the delay. s may be nil.
func (s *delay) close() {
	if s == nil {
		return
	}
	close(s.stop)
	<-s.done
	_ = unix.Close(s.socket)
}

// packet is a delayed packet and the time at which it is sent.
type packet struct {
	id  uint32
	due time.Time
}

// receive reads packets from the kernel until stop is closed and the queue is
// empty.
func (s *delay) receive(held chan<- packet, d, jitter time.Duration) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(s.socket, buffer, 0)
		if err != nil { // no packet within the timeout, or a full buffer: read again
			select {
			case <-s.stop:
				return
			default:
				continue
			}
		}
		due := time.Now().Add(d)
		if jitter > 0 {
			due = due.Add(rand.N(2*jitter) - jitter)
		}
		for _, id := range packetIDs(buffer[:n]) {
			held <- packet{id, due}
		}
	}
}

// pass sends each packet at its time and in the order of arrival.
func (s *delay) pass(held <-chan packet) {
	for p := range held {
		select {
		case <-time.After(time.Until(p.due)):
		case <-s.stop:
		}
		var verdict [8]byte
		binary.BigEndian.PutUint32(verdict[:], accept)
		binary.BigEndian.PutUint32(verdict[4:], p.id)
		_ = unix.Sendto(s.socket, message(messageVerdict, attrVerdict, verdict[:]), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) // on an error the packet is lost, which the test permits
	}
}

// queueSocket opens the queue of a process's network namespace.
func queueSocket(pid string) (int, error) {
	var socket int
	err := inNamespace("/proc/"+pid+"/ns/net", func() (err error) {
		socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket: %w", err)
	}
	const patience = 100 * time.Millisecond // interval at which the reader checks stop
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	// A config message has one of these attributes: struct nfqnl_msg_config_cmd,
	// struct nfqnl_msg_config_params, or a length.
	for _, m := range [][]byte{
		message(messageConfig, attrCommand, []byte{commandBind, 0, 0, unix.AF_INET}),
		message(messageConfig, attrParams, []byte{0, 0, 0, 0, copyMeta}),
		message(messageConfig, attrLength, binary.BigEndian.AppendUint32(nil, queueLength)),
	} {
		err = errors.Join(err, unix.Sendto(socket, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	}
	if err != nil {
		_ = unix.Close(socket)
		return 0, fmt.Errorf("bind the queue: %w", err)
	}
	return socket, nil
}

// inNamespace calls do in a network namespace.
func inNamespace(path string, do func() error) error {
	failed := make(chan error)
	go func() {
		// The thread ends with its goroutine, so no other goroutine runs in the
		// namespace.
		runtime.LockOSThread()
		failed <- func() error {
			ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(ns) }()
			if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
				return err
			}
			return do()
		}()
	}()
	return <-failed
}

// message returns a netlink message for the queue with one attribute.
func message(kind uint16, attribute uint16, value []byte) []byte {
	length := attributeHeader + len(value)
	padded := (length + 3) &^ 3
	m := make([]byte, 0, netlinkHeader+generalHeader+padded)
	m = binary.NativeEndian.AppendUint32(m, uint32(netlinkHeader+generalHeader+padded))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST)
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0) // sequence, port
	m = append(m, unix.AF_UNSPEC, 0)
	m = binary.BigEndian.AppendUint16(m, queueNumber)
	m = binary.NativeEndian.AppendUint16(m, uint16(length))
	m = binary.NativeEndian.AppendUint16(m, attribute)
	m = append(m, value...)
	return append(m, make([]byte, padded-length)...)
}

// packetIDs returns the packet ids in messages of the kernel.
func packetIDs(data []byte) []uint32 {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return nil
	}
	var ids []uint32
	for _, m := range messages {
		if m.Header.Type != messagePacket {
			continue
		}
		for rest := m.Data[generalHeader:]; len(rest) > attributeHeader; {
			length := int(binary.NativeEndian.Uint16(rest))
			if length < attributeHeader || length > len(rest) {
				break
			}
			if binary.NativeEndian.Uint16(rest[2:]) == attrPacket {
				ids = append(ids, binary.BigEndian.Uint32(rest[attributeHeader:]))
			}
			rest = rest[min((length+3)&^3, len(rest)):]
		}
	}
	return ids
}
