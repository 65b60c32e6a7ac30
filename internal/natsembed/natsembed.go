// Package natsembed runs a NATS server with JetStream inside this process: for
// `procfleet up`, for tests, and stand-alone for benchmarks. It is the only
// package that links the server.
//
// Messages that JetStream acknowledged are in its files and survive a SIGKILL of this
// process: the page cache belongs to the kernel. Only a power loss or a kernel crash
// can lose messages of the last [syncInterval]; the sweep then republishes the lost
// chunk references from the task store.
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
	// readyTimeout limits the startup, which reads every stream from disk.
	readyTimeout = 60 * time.Second
	// handshakeTimeout limits a client's TLS handshake; the server's default of 2 s
	// is too short when all hosts reconnect at once.
	handshakeTimeout = 10 * time.Second
)

// Config of an embedded server.
type Config struct {
	// StoreDir is the folder for JetStream's files; required.
	StoreDir string
	// Listen is a "host:port" for other processes; port 0 selects a free port.
	// Empty: in-process connections only.
	Listen string
	// Authority, if set, restricts connections, also in this process, to its users;
	// see [Server.SetAccount].
	Authority *natsauth.Broker
	// TLS, if set, is required on Listen.
	TLS *tls.Config
	// MaxStore limits JetStream's files in bytes; 0 means three quarters of the
	// free disk space.
	MaxStore int64
	// Log receives the server's log lines; required.
	Log logrus.FieldLogger
}

// Server is a running server. It implements [nats.InProcessConnProvider].
type Server struct{ server *server.Server }

// Start starts a server and returns once it accepts connections.
func Start(cfg Config) (*Server, error) {
	opts, err := cfg.options()
	if err != nil {
		return nil, err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	log := &logger{log: cfg.Log.WithField("component", "nats-server"), fatal: make(chan string, 1)}
	ns.SetLoggerV2(log, false, false, false)
	go ns.Start() // returns after Shutdown
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

// freeAddress resolves a listen address and checks that it is available before the
// start, because the server itself would only log a failure.
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

// ClientURL returns the URL for other processes; "" if in-process only.
func (s *Server) ClientURL() string {
	if s.server.Addr() == nil {
		return ""
	}
	return s.server.ClientURL()
}

// InProcessConn returns a connection that does not use the network.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.InProcessConn() }

// Shutdown stops the server and waits until its files are closed.
func (s *Server) Shutdown() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// logger logs the server's lines. Notices become debug lines: they concern the
// operator of a broker, not of `procfleet up`.
type logger struct {
	log   logrus.FieldLogger
	fatal chan string // first fatal line, which Start returns as its error
}

func (l *logger) line(format string, v []any) logrus.FieldLogger {
	return l.log.WithField("detail", fmt.Sprintf(format, v...))
}

func (l *logger) Noticef(format string, v ...any) { l.line(format, v).Debug("nats-server notice") }
func (l *logger) Errorf(format string, v ...any)  { l.line(format, v).Error("nats-server error") }
func (l *logger) Debugf(format string, v ...any)  { l.line(format, v).Debug("nats-server debug") }
func (l *logger) Tracef(format string, v ...any)  { l.line(format, v).Debug("nats-server trace") }

// Warnf logs requests that JetStream rejects at debug level: dispatchers and workers
// send an invalid request on purpose, to detect whether the server is strict.
func (l *logger) Warnf(format string, v ...any) {
	if strings.Contains(fmt.Sprintf(format, v...), "Invalid JetStream request") {
		l.Debugf(format, v...)
		return
	}
	l.line(format, v).Warn("nats-server warning")
}

func (l *logger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default: // a consequence of the first fatal line
	}
}
