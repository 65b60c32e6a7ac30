package destination

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

func TestLocalAddressesAreRefusedHoweverTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		"127.0.0.1", "127.8.8.8", "0.0.0.0", "0.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192",
		"224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fec0::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254",
		"::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "2002:7f00:1::1", "2001:0:1::1",
	} {
		if !(Policy{}).refuses(netip.MustParseAddr(addr)) {
			t.Errorf("%s is not refused", addr)
		}
	}
	for _, addr := range []string{
		"10.0.0.1", "192.168.0.1", "100.64.0.1", "8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2600::1", "fd12::1",
	} {
		if (Policy{}).refuses(netip.MustParseAddr(addr)) {
			t.Errorf("%s is refused", addr)
		}
	}
}

func TestWhatIsAllowedOpensNothingElse(t *testing.T) {
	t.Parallel()
	r, err := Parse("", []string{"127.0.0.0/30", " ::1", "::ffff:169.254.0.9", "Hooks.Example."})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"127.0.0.1": false, "::ffff:127.0.0.1": false, "64:ff9b::7f00:1": false, "::1": false, "169.254.0.9": false,
		"127.0.0.4": true, "::2": true, "169.254.0.8": true, "8.8.8.8": false,
	} {
		if r.refuses(netip.MustParseAddr(addr)) != want {
			t.Errorf("%s: refused is not %v", addr, want)
		}
	}
	for _, entry := range []string{"", "10.0.0.0/33", "a:80", "[::1]", "127.1", "0x7f.1", "2130706433", "0x7f000001", "*.example", "http://a", "a b", "a/b"} {
		if _, err := Parse("", []string{entry}); err == nil {
			t.Errorf("%q is accepted", entry)
		}
	}
}

// Every spelling in the test would connect to the loopback address if it were permitted. The
// test server must receive no connection.
func TestARequestReachesNoLocalServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was reached", r.Host) }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: Policy{}.Transport(1)}
	defer client.CloseIdleConnections()
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "127.1", "0x7f000001", "2130706433", "[::ffff:127.0.0.1]", "[::1]", "[::]"} {
		response, err := client.Get("http://" + net.JoinHostPort(trimBrackets(host), port))
		if err == nil {
			response.Body.Close()
			t.Errorf("%s answered %s", host, response.Status)
			continue
		}
		// Not every resolver knows the old spellings of IPv4 addresses.
		if _, unknown := errors.AsType[*net.DNSError](err); !unknown && !Refused(err) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func trimBrackets(host string) string {
	if host[0] == '[' {
		return host[1 : len(host)-1]
	}
	return host
}

// A proxy would resolve the receiver's name itself, so the worker could not reject local addresses.
func TestCallbacksUseNoProxy(t *testing.T) {
	t.Parallel()
	if (Policy{}).Transport(1).Proxy != nil {
		t.Error("callbacks go through a proxy of the environment")
	}
}

func TestAnAllowedHostIsReachedAtALocalAddress(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{"localhost", "127.0.0.0/8"} {
		r, err := Parse("", []string{entry})
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: r.Transport(1)}
		response, err := client.Get("http://localhost:" + port)
		if err != nil {
			t.Errorf("%s: %v", entry, err)
			continue
		}
		response.Body.Close()
		client.CloseIdleConnections()
	}
}
