package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
)

const (
	defaultServer = "http://127.0.0.1:8080"
	// askPatience is how long a command that asks something tries again: somebody
	// is waiting for it.
	askPatience = 2 * time.Second
	// askTimeout is how long one server may take over a question before the next
	// is asked: longer than a dispatcher waits for its task store. A submission
	// may be large and has the client's own limit.
	askTimeout = 10 * time.Second
	// watchPatience is how long a command that watches does: long enough for a
	// server to be restarted, on another machine too.
	watchPatience = 60 * time.Second
)

// serverFlags are the flags of every command that asks a server.
type serverFlags struct {
	url, token string
	tls        tlsflags.Client
}

func (s *serverFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&s.url, "server", defaultServer, "dispatcher URLs, comma-separated, or unix:PATH")
	s.tls.Register(flags, "server", "the dispatcher")
	flags.StringVar(&s.token, "token", "", "calling application as <code>.<secret>; safer as PROCFLEET_TOKEN")
}

// hint is the flag that makes a suggested command ask the same server.
func (s *serverFlags) hint() string {
	if s.url == defaultServer {
		return ""
	}
	return " --server " + strings.ReplaceAll(s.url, " ", "") + s.tls.Given() // it is pasted into a shell
}

// client returns a client for a command's questions.
func (s *serverFlags) client(cmd *cobra.Command) (*client.Client, error) {
	return s.connect(client.Config{Patience: askPatience, Timeout: askTimeout, Trouble: troubles(cmd, askPatience)})
}

// submitter returns a client for a submission.
func (s *serverFlags) submitter(cmd *cobra.Command) (*client.Client, error) {
	return s.connect(client.Config{Patience: askPatience, Trouble: troubles(cmd, askPatience)})
}

// watcher returns a client for watching; trouble is told of every outage.
func (s *serverFlags) watcher(trouble func(error)) (*client.Client, error) {
	return s.connect(client.Config{Patience: watchPatience, Timeout: askTimeout, Trouble: trouble})
}

func (s *serverFlags) connect(cfg client.Config) (*client.Client, error) {
	cfg.URL, cfg.Token = s.url, s.token
	var err error
	if path, is := strings.CutPrefix(s.url, daemon.UnixSocket); is {
		if err := daemon.CheckSocket(path); err != nil {
			return nil, command.Usagef("--server: %w", err)
		}
		cfg.URL, cfg.HTTP = socketURL, overSocket(path)
	} else if cfg.HTTP, err = s.http(); err != nil {
		return nil, err
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, command.Usagef("--server, --token: %w", err)
	}
	return c, nil
}

// socketURL is the URL of every request that goes through a Unix socket.
const socketURL = "http://localhost"

// overSocket makes requests through a Unix socket, whatever their URL.
func overSocket(path string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// http returns what makes requests with the certificates that were given; nil
// if none was.
func (s *serverFlags) http() (*http.Client, error) {
	files, err := s.tls.OpenAtOnce()
	switch {
	case err != nil:
		return nil, command.Usagef("%w", err)
	case files == nil:
		return nil, nil
	}
	for server := range strings.SplitSeq(s.url, ",") {
		if !strings.HasPrefix(strings.TrimSpace(server), "https://") {
			return nil, command.Usagef("--server: with --server-ca or --server-cert every server must be asked by https://")
		}
	}
	return &http.Client{Transport: files.Transport(http.DefaultTransport.(*http.Transport))}, nil
}

// advice is what the reader of an error of the client can do about it.
func advice(err error) string {
	if doubt, ok := errors.AsType[*client.UnknownError](err); ok {
		return "repeat the command with --idempotency-key " + doubt.IdempotencyKey + ", which never makes a second task"
	}
	for _, kind := range []struct {
		err    error
		advice string
	}{
		{client.ErrUnreachable, "is `procfleet up` (or a dispatcher) running there? Start it, or name another with --server or PROCFLEET_SERVER"},
		{client.ErrBadAnswer, "is --server right?"},
		{client.ErrUnavailable, "the server is busy or a part of it is away: try again, or look at its /readyz"},
		{client.ErrVersion, "somebody changed it: show it again, and apply what is to be changed in that"},
		{client.ErrConflict, "choose another --idempotency-key"},
		{client.ErrDenied, "name an application that may do this with --token or PROCFLEET_TOKEN"},
	} {
		if errors.Is(err, kind.err) {
			return kind.advice
		}
	}
	return ""
}
