package notify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Receivers restricts the addresses to which callbacks are sent. The zero value refuses
// loopback, link-local and cloud metadata addresses. The address of each connection is
// checked, so neither alternative spellings nor DNS changes circumvent it.
type Receivers struct {
	anywhere bool
	networks []netip.Prefix
	hosts    []string
}

// AnyReceiver returns Receivers that refuse no address. Use it only if callers may
// reach everything that the worker can reach.
func AnyReceiver() Receivers { return Receivers{anywhere: true} }

// ParseReceivers returns Receivers that allow the entries in addition to the addresses
// that the zero value allows. An entry is a network (10.0.0.0/8), an address, or a host
// name as in callback URLs; a host name is allowed at any address.
func ParseReceivers(entries []string) (Receivers, error) {
	var r Receivers
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			r.networks = append(r.networks, prefix.Masked())
			continue
		}
		if addr, err := netip.ParseAddr(entry); err == nil {
			addr = addr.Unmap().WithZone("")
			r.networks = append(r.networks, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		host := canonicalHost(entry)
		if !isHostName(host) {
			return Receivers{}, fmt.Errorf("%q is neither a network like 10.0.0.0/8, nor an address, nor a host name without a port", entry)
		}
		r.hosts = append(r.hosts, host)
	}
	return r, nil
}

func canonicalHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// isHostName reports whether host is a host name and not a number: 127.1 and 2130706433
// are alternative spellings of addresses.
func isHostName(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last != "" && strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x") &&
		!strings.ContainsFunc(host, func(r rune) bool {
			return r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
		})
}

// localNetworks are refused unless an entry allows them.
var localNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),          // unspecified: the machine itself
	netip.MustParsePrefix("127.0.0.0/8"),        // loopback
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local, and the metadata of most clouds
	netip.MustParsePrefix("100.100.100.200/32"), // metadata of Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // the host agent of Azure
	netip.MustParsePrefix("192.0.0.0/24"),       // IETF protocol assignments; metadata of Oracle Cloud
	netip.MustParsePrefix("224.0.0.0/4"),        // multicast
	netip.MustParsePrefix("240.0.0.0/4"),        // reserved, and broadcast
	netip.MustParsePrefix("::/128"),             // unspecified
	netip.MustParsePrefix("::1/128"),            // loopback
	netip.MustParsePrefix("fe80::/10"),          // link-local
	netip.MustParsePrefix("fec0::/10"),          // site-local, deprecated
	netip.MustParsePrefix("ff00::/8"),           // multicast
	netip.MustParsePrefix("fd00:ec2::/32"),      // metadata of AWS
	netip.MustParsePrefix("fd20:ce::/32"),       // metadata of Google Cloud
	netip.MustParsePrefix("2001::/32"),          // Teredo: contains an obfuscated IPv4 address
	netip.MustParsePrefix("64:ff9b:1::/48"),     // NAT64 with a prefix local to the network
}

// carriers are IPv6 networks whose addresses embed an IPv4 address, at byte offset at.
var carriers = []struct {
	netip.Prefix
	at int
}{
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4
}

// refuses reports whether callbacks to addr are refused.
func (r Receivers) refuses(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	within := func(p netip.Prefix) bool { return p.Contains(addr) }
	if r.anywhere || slices.ContainsFunc(r.networks, within) {
		return false
	}
	if slices.ContainsFunc(localNetworks, within) {
		return true
	}
	for _, c := range carriers {
		if c.Contains(addr) {
			all := addr.As16()
			return r.refuses(netip.AddrFrom4([4]byte(all[c.at : c.at+4])))
		}
	}
	return false
}

// refusedReceiverError means that a callback's host resolves to a refused address.
type refusedReceiverError struct {
	host string
	addr netip.Addr
}

func (e *refusedReceiverError) Error() string {
	return fmt.Sprintf("%s is at %s, a local address that callbacks must not reach; if they may, start workers with --callback-allow %[1]s", e.host, e.addr)
}

func refused(err error) bool {
	_, is := errors.AsType[*refusedReceiverError](err)
	return is
}

// dial connects to address, or returns a [refusedReceiverError].
func (r Receivers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(r.hosts, canonicalHost(host)) {
		dialer.ControlContext = func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return fmt.Errorf("address %q: %w", resolved, err)
			}
			if r.refuses(at.Addr()) {
				return &refusedReceiverError{host: host, addr: at.Addr()}
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}

const (
	dialTimeout = 30 * time.Second // the timeout of the whole callback is shorter
	keepAlive   = 30 * time.Second
)

// transport returns the HTTP transport of callbacks. It uses no proxy, because a proxy
// would resolve the receiver's name and bypass the address check.
func (r Receivers) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy, t.DialContext, t.MaxConnsPerHost = nil, r.dial, maxCallbacks
	return t
}
