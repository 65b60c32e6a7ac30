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
	// queryPatience limits the retries of a query, because a user waits for the result.
	queryPatience = 2 * time.Second
	// queryTimeout limits the wait for one server's response before the client tries
	// the next server. It exceeds a dispatcher's timeout for the task store. It does
	// not apply to a submission, which may be large.
	queryTimeout = 10 * time.Second
	// watchPatience limits the retries of a watch; it allows for the restart of a
	// server.
	watchPatience = 60 * time.Second
)

// serverFlags are the flags of all commands that call a dispatcher.
type serverFlags struct {
	url, token  string
	tls         tlsflags.Client
	contextName string
	output      string // format of --output
	json        bool   // output is JSON or YAML
	flags       *pflag.FlagSet
	context     *serverContext // the context in use; nil = none
}

func (s *serverFlags) register(flags *pflag.FlagSet) {
	s.flags, s.output = flags, outputTable
	flags.StringVar(&s.url, "server", defaultServer, "dispatcher URLs, comma-separated, or unix:PATH")
	s.tls.Register(flags, "server", "the dispatcher")
	flags.StringVar(&s.token, "token", "", "calling application as <code>.<secret>; safer as PROCFLEET_TOKEN")
	flags.StringVar(&s.contextName, "context", "", "context in place of the current one; see procfleet context")
	flags.VarP(outputValue{s}, "output", "o", "table, wide, json, yaml or name")
	flags.Var(jsonValue{s}, "json", "JSON output, as --output json")
	flags.Lookup("json").NoOptDefVal = "true"
}

// hint returns the flags for a suggested command, so that it calls the same server.
func (s *serverFlags) hint() string {
	switch {
	case s.context != nil && s.contextName != "":
		return " --context " + s.contextName
	case s.context != nil, s.url == defaultServer:
		return ""
	}
	return " --server " + strings.ReplaceAll(s.url, " ", "") + s.tls.Given() // users paste the hint into a shell
}

// client returns a client for queries.
func (s *serverFlags) client(cmd *cobra.Command) (*client.Client, error) {
	return s.connect(client.Config{Patience: queryPatience, Timeout: queryTimeout, Trouble: reportTrouble(cmd, queryPatience)})
}

// submitter returns a client for a submission.
func (s *serverFlags) submitter(cmd *cobra.Command) (*client.Client, error) {
	return s.connect(client.Config{Patience: queryPatience, Trouble: reportTrouble(cmd, queryPatience)})
}

// watcher returns a client for watching a task; it calls trouble for every outage.
func (s *serverFlags) watcher(trouble func(error)) (*client.Client, error) {
	return s.connect(client.Config{Patience: watchPatience, Timeout: queryTimeout, Trouble: trouble})
}

func (s *serverFlags) connect(cfg client.Config) (*client.Client, error) {
	if err := s.useContext(); err != nil {
		return nil, err
	}
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

// socketURL is the base URL for requests through a Unix socket.
const socketURL = "http://localhost"

// overSocket returns a client that connects to a Unix socket for any URL.
func overSocket(path string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// http returns a client with the certificates of the flags, or nil without any.
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
			return nil, command.Usagef("--server: --server-ca and --server-cert require https:// URLs")
		}
	}
	return &http.Client{Transport: files.Transport(http.DefaultTransport.(*http.Transport))}, nil
}

// advice returns the remedy for an error of the client.
func advice(err error) string {
	if unknown, ok := errors.AsType[*client.UnknownError](err); ok {
		return "repeat the command with --idempotency-key " + unknown.IdempotencyKey + ", which never makes a second task"
	}
	for _, kind := range []struct {
		err    error
		advice string
	}{
		{client.ErrUnreachable, "is `procfleet up` (or a dispatcher) running there? Start it, or name another with --server or PROCFLEET_SERVER"},
		{client.ErrBadResponse, "is --server right?"},
		{client.ErrUnavailable, "the server is busy or lacks NATS or Redis: try again, or query its /readyz"},
		{client.ErrVersion, "the topology has changed: show it again and apply your change to the new version"},
		{client.ErrConflict, "choose another --idempotency-key"},
		{client.ErrDenied, "give the token of an application with this right in --token or PROCFLEET_TOKEN"},
	} {
		if errors.Is(err, kind.err) {
			return kind.advice
		}
	}
	return ""
}
