// Package destination restricts the addresses to which a server sends requests whose URLs callers
// choose: callbacks and webhooks.
package destination

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

// Policy restricts destinations. The zero value refuses loopback, link-local and cloud metadata
// addresses. The address of each connection is checked, so neither alternative spellings nor DNS
// changes circumvent it.
type Policy struct {
	permit   string // how to permit an address: "workers with --callback-allow"
	anywhere bool
	networks []netip.Prefix
	hosts    []string
}

// Anywhere returns the policy that refuses no address. Use it only if callers may reach everything
// that the server can reach.
func Anywhere() Policy { return Policy{anywhere: true} }

// Parse returns a policy that allows the entries in addition to the addresses that the zero value
// allows. An entry is a network (10.0.0.0/8), an address, or a host name as in URLs; a host name is
// allowed at any address. The errors of refused connections say to start permit: a role with the
// name of a flag.
func Parse(permit string, entries []string) (Policy, error) {
	p := Policy{permit: permit}
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			p.networks = append(p.networks, prefix.Masked())
			continue
		}
		if addr, err := netip.ParseAddr(entry); err == nil {
			addr = addr.Unmap().WithZone("")
			p.networks = append(p.networks, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		host := canonicalHost(entry)
		if !isHostName(host) {
			return Policy{}, fmt.Errorf("%q is neither a network like 10.0.0.0/8, nor an address, nor a host name without a port", entry)
		}
		p.hosts = append(p.hosts, host)
	}
	return p, nil
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

// refuses reports whether connections to addr are refused.
func (p Policy) refuses(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	within := func(n netip.Prefix) bool { return n.Contains(addr) }
	if p.anywhere || slices.ContainsFunc(p.networks, within) {
		return false
	}
	if slices.ContainsFunc(localNetworks, within) {
		return true
	}
	for _, c := range carriers {
		if c.Contains(addr) {
			all := addr.As16()
			return p.refuses(netip.AddrFrom4([4]byte(all[c.at : c.at+4])))
		}
	}
	return false
}

// refusedError means that the host of a URL resolves to a refused address.
type refusedError struct {
	host   string
	addr   netip.Addr
	permit string
}

func (e *refusedError) Error() string {
	text := fmt.Sprintf("%s is at %s, a local address that callers must not reach", e.host, e.addr)
	if e.permit != "" {
		text += fmt.Sprintf("; if they may, start %s %s", e.permit, e.host)
	}
	return text
}

// Refused reports whether err is that of a connection to a refused address.
func Refused(err error) bool {
	_, is := errors.AsType[*refusedError](err)
	return is
}

// dial connects to address, or returns a [refusedError].
func (p Policy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(p.hosts, canonicalHost(host)) {
		dialer.ControlContext = func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return fmt.Errorf("address %q: %w", resolved, err)
			}
			if p.refuses(at.Addr()) {
				return &refusedError{host: host, addr: at.Addr(), permit: p.permit}
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}

const (
	dialTimeout = 30 * time.Second // the timeouts of whole requests are shorter
	keepAlive   = 30 * time.Second
)

// Transport returns an HTTP transport with a maximum number of connections per host. It uses no
// proxy, because a proxy would resolve the names of hosts and bypass the address check.
func (p Policy) Transport(connections int) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy, t.DialContext, t.MaxConnsPerHost = nil, p.dial, connections
	return t
}
