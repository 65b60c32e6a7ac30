package testenv

import (
	"net"
	"strconv"
	"testing"
)

func TestAFreePortIsReservedForItsTest(t *testing.T) {
	t.Parallel()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
	if other, err := net.ListenPacket("udp", addr); err == nil {
		t.Error("another test can reserve the port")
		_ = other.Close()
	}
	server, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
}
