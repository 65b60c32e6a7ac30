// Package natsembed runs a NATS server with JetStream inside this process: for
// `procfleet up`, for tests, and stand-alone for benchmarks. It is the only
// package that links the server.
//
// What JetStream acknowledged has been written to its files, so it survives a
// SIGKILL of this process: the page cache belongs to the kernel. Only a power
// loss or kernel crash can take back the last [syncInterval]; what that
// loses, the sweep publishes again from the task store.
package natsembed

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/natsauth"
)

const (
	syncInterval = 10 * time.Second
	// readyTimeout bounds the start, which reads every stream from disk.
	readyTimeout = 60 * time.Second
	// handshakeTimeout is what a client has to finish a TLS handshake; the
	// server's own 2 s are short for hosts that all come back at once.
	handshakeTimeout = 10 * time.Second
)

// Config of an embedded server.
type Config struct {
	// StoreDir is the folder for JetStream's files; required.
	StoreDir string
	// Listen is a "host:port" for other processes; port 0 finds a free one.
	// Empty is in-process only.
	Listen string
	// Authority, if set, restricts connections to its users, in this process too;
	// see [Server.SetAccount].
	Authority *natsauth.Broker
	// TLS, if set, is spoken on Listen and nothing else.
	TLS *tls.Config
	// MaxStore bounds JetStream's files in bytes; 0 is three quarters of the
	// free disk.
	MaxStore int64
	// Log takes the server's notices; required.
	Log logrus.FieldLogger
}

// Server is a running server. It implements [nats.InProcessConnProvider].
type Server struct{ server *server.Server }

// Start starts a server and returns when it takes connections.
func Start(cfg Config) (*Server, error) {
	opts, err := cfg.options()
	if err != nil {
		return nil, err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	log := newLogger(cfg.Log)
	ns.SetLoggerV2(log, false, false, false)
	go ns.Start() // ends with Shutdown, which waits for it
	if err := awaitReady(ns, log.fatal); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("embedded NATS with data in %s: %w", cfg.StoreDir, err)
	}
	return &Server{server: ns}, nil
}

func (cfg Config) options() (*server.Options, error) {
	if cfg.StoreDir == "" || cfg.Log == nil {
		return nil, errors.New("natsembed: Config.StoreDir and Config.Log are required")
	}
	opts := &server.Options{
		ServerName:             "procfleet-embedded",
		JetStream:              true,
		StoreDir:               cfg.StoreDir,
		JetStreamMaxStore:      cfg.MaxStore,
		SyncInterval:           syncInterval,
		NoSigs:                 true,
		DisableJetStreamBanner: true,
		MaxConn:                natsauth.BrokerConnections,
		DontListen:             cfg.Listen == "",
	}
	if err := trust(opts, cfg.Authority); err != nil {
		return nil, err
	}
	if cfg.Listen == "" {
		return opts, nil
	}
	addr, err := freeAddress(cfg.Listen)
	if err != nil {
		return nil, err
	}
	if cfg.TLS != nil {
		opts.TLSConfig, opts.TLSTimeout = cfg.TLS, handshakeTimeout.Seconds()
		opts.TLSVerify = cfg.TLS.ClientAuth == tls.RequireAndVerifyClientCert
	}
	opts.Host, opts.Port = addr.Addr().String(), int(addr.Port())
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	return opts, nil
}

// freeAddress resolves a listen address and finds out whether it can be had
// before anything is started, because the server itself only logs that.
func freeAddress(listen string) (netip.AddrPort, error) {
	tcp, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("NATS listen address %q: %w", listen, err)
	}
	probe, err := net.ListenTCP("tcp", tcp)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("NATS listen address %q: %w; choose another address if it is in use", listen, err)
	}
	if err := probe.Close(); err != nil {
		return netip.AddrPort{}, fmt.Errorf("NATS listen address %q: %w", listen, err)
	}
	if tcp.IP == nil {
		tcp.IP = net.IPv4zero
	}
	addr := tcp.AddrPort()
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), nil
}

func awaitReady(ns *server.Server, fatal <-chan string) error {
	deadline := time.Now().Add(readyTimeout)
	for time.Now().Before(deadline) {
		select {
		case reason := <-fatal:
			return errors.New(reason)
		default:
		}
		if ns.ReadyForConnections(250 * time.Millisecond) {
			return nil
		}
	}
	return fmt.Errorf("not ready after %v", readyTimeout)
}

// ClientURL is where other processes connect; "" when in-process only.
func (s *Server) ClientURL() string {
	if s.server.Addr() == nil {
		return ""
	}
	return s.server.ClientURL()
}

// InProcessConn returns a connection that never touches the network.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.InProcessConn() }

// Shutdown stops the server and waits until its files are closed.
func (s *Server) Shutdown() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// logger logs the lines of the server. Notices become debug lines: they matter to
// an operator of a broker, not of `procfleet up`.
type logger struct {
	log   logrus.FieldLogger
	fatal chan string // the first fatal line; Start returns it as its error
}

func newLogger(log logrus.FieldLogger) *logger {
	return &logger{log: log.WithField("component", "nats-server"), fatal: make(chan string, 1)}
}

func (l *logger) line(format string, v []any) logrus.FieldLogger {
	return l.log.WithField("detail", fmt.Sprintf(format, v...))
}

func (l *logger) Noticef(format string, v ...any) { l.line(format, v).Debug("notice") }
func (l *logger) Errorf(format string, v ...any)  { l.line(format, v).Error("error") }
func (l *logger) Debugf(format string, v ...any)  { l.line(format, v).Debug("debug") }
func (l *logger) Tracef(format string, v ...any)  { l.line(format, v).Debug("trace") }

// Warnf logs requests that JetStream rejects at debug level: dispatchers and
// workers send one on purpose, to detect whether the server is strict.
func (l *logger) Warnf(format string, v ...any) {
	if strings.Contains(fmt.Sprintf(format, v...), "Invalid JetStream request") {
		l.Debugf(format, v...)
		return
	}
	l.line(format, v).Warn("warning")
}

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default: // a consequence of the first
	}
}
