package peercred

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// UID returns the account of the peer of a Unix or TCP connection. A TCP peer must be
// a socket in this network namespace that is still open: call UID as soon as the
// connection is accepted. UID does not block. After an error any account is possible.
func UID(conn net.Conn) (uint32, error) {
	conn = under(conn)
	var uid uint32
	var err error
	if socket, ok := conn.(*net.UnixConn); ok {
		uid, err = unixPeer(socket)
	} else {
		uid, err = tcpPeer(conn)
	}
	if err == nil && uid == overflowUID && !everyAccountMapped() {
		err = errors.New("the account is of another user namespace")
	}
	if err != nil {
		return 0, fmt.Errorf("read the account of the connection: %w", err)
	}
	return uid, nil
}

// under returns the connection inside wrappers such as TLS.
func under(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// overflowUID is the uid of all accounts that are not mapped in a user namespace.
const overflowUID = 65534

// everyAccountMapped reports whether all accounts have distinct uids, as outside of
// user namespaces.
var everyAccountMapped = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
})

func unixPeer(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(failed, err); err != nil {
		return 0, err
	}
	return peer.Uid, nil
}

// tcpPeer returns the owner of the socket whose local address is the remote address
// of conn.
func tcpPeer(conn net.Conn) (uint32, error) {
	peer, err := endpoint(conn.RemoteAddr())
	if err != nil {
		return 0, err
	}
	own, err := endpoint(conn.LocalAddr())
	if err != nil {
		return 0, err
	}
	found, err := find(&diagRequest{Family: family(peer), Protocol: unix.IPPROTO_TCP, States: ^uint32(0), ID: newSockID(peer, own)})
	if err != nil {
		return 0, err
	}
	switch source, destination := found.ends(); {
	case source != peer, destination != own:
		return 0, errors.New("sock_diag reported another connection")
	case found.Inode == 0 || !open(found.State):
		// For a closed socket, which has no owner, the kernel returns 0, the uid of
		// root.
		return 0, errors.New("the peer has closed the connection")
	}
	return found.UID, nil
}

func endpoint(addr net.Addr) (netip.AddrPort, error) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%s is not a TCP address", addr)
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), nil
}

func family(at netip.AddrPort) uint8 {
	if at.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// open reports whether a socket in this TCP state can have sent a request and still
// wait for the response.
func open(state uint8) bool {
	switch state {
	case unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_FIN_WAIT2:
		return true
	}
	return false
}

// Messages of sock_diag(7) for one socket: inet_diag_sockid, inet_diag_req_v2 and
// inet_diag_msg of <linux/inet_diag.h>.
type (
	sockID struct {
		SourcePort, DestinationPort [2]byte
		Source, Destination         [16]byte
		If                          uint32
		Cookie                      [2]uint32
	}
	diagRequest struct {
		Family, Protocol, Extensions, _ uint8
		States                          uint32
		ID                              sockID
	}
	diagReply struct {
		Family, State, Timer, Retransmits uint8
		ID                                sockID
		Expires, ReadQueue, WriteQueue    uint32
		UID, Inode                        uint32
	}
)

func newSockID(source, destination netip.AddrPort) sockID {
	id := sockID{Cookie: [2]uint32{^uint32(0), ^uint32(0)}} // INET_DIAG_NOCOOKIE
	binary.BigEndian.PutUint16(id.SourcePort[:], source.Port())
	binary.BigEndian.PutUint16(id.DestinationPort[:], destination.Port())
	copy(id.Source[:], source.Addr().AsSlice())
	copy(id.Destination[:], destination.Addr().AsSlice())
	return id
}

// ends returns the addresses of the socket and of its peer.
func (a *diagReply) ends() (source, destination netip.AddrPort) {
	address := func(bytes [16]byte) netip.Addr {
		if a.Family == unix.AF_INET {
			return netip.AddrFrom4([4]byte(bytes[:4]))
		}
		return netip.AddrFrom16(bytes).Unmap() // an IPv6 socket may use IPv4
	}
	return netip.AddrPortFrom(address(a.ID.Source), binary.BigEndian.Uint16(a.ID.SourcePort[:])),
		netip.AddrPortFrom(address(a.ID.Destination), binary.BigEndian.Uint16(a.ID.DestinationPort[:]))
}

// find queries sock_diag for one socket. The kernel replies synchronously, so find
// does not block.
func find(request *diagRequest) (*diagReply, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // no data is in flight
	header := unix.NlMsghdr{
		Len: uint32(unix.SizeofNlMsghdr + binary.Size(request)), Type: unix.SOCK_DIAG_BY_FAMILY, Flags: unix.NLM_F_REQUEST, //nolint:gosec // the length is 72
	}
	message, err := binary.Append(nil, binary.NativeEndian, &header)
	if err == nil {
		message, err = binary.Append(message, binary.NativeEndian, request)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("query sock_diag: %w", err)
	}
	reply := make([]byte, os.Getpagesize())
	n, from, err := unix.Recvfrom(fd, reply, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("read from sock_diag: %w", err)
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil, errors.New("sock_diag: the reply is not from the kernel")
	}
	return parseReply(reply[:n])
}

func parseReply(text []byte) (*diagReply, error) {
	messages, err := syscall.ParseNetlinkMessage(text)
	if err != nil || len(messages) == 0 {
		return nil, errors.Join(errors.New("sock_diag: no reply"), err)
	}
	first := messages[0]
	if first.Header.Type == unix.NLMSG_ERROR && len(first.Data) >= 4 {
		return nil, fmt.Errorf("sock_diag: %w", syscall.Errno(-int32(binary.NativeEndian.Uint32(first.Data)))) //nolint:gosec // an error number
	}
	var found diagReply
	if _, err := binary.Decode(first.Data, binary.NativeEndian, &found); err != nil || first.Header.Type != unix.SOCK_DIAG_BY_FAMILY {
		return nil, fmt.Errorf("sock_diag: unexpected reply of type %d with %d bytes", first.Header.Type, len(first.Data))
	}
	return &found, nil
}
