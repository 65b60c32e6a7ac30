package local

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	checkInterval  = 5 * time.Second  // interval of checks that the socket's file exists
	requestTimeout = 10 * time.Second // timeout of a request and its reply
	requestBytes   = 4 << 10
	requestLimit   = 4 // maximum number of concurrent requests; further ones wait
)

// Server replies to queries on the socket of one data folder.
type Server struct {
	Dir       string           // data folder, locked by this process
	Agent     func() Agent     // safe for concurrent use
	Processes func() []Process // safe for concurrent use
	Log       logrus.FieldLogger
}

// Run serves until ctx ends. If the socket cannot be created it retries, and if the
// socket's file is removed it creates the socket again.
func (s *Server) Run(ctx context.Context) {
	logged := false
	for ctx.Err() == nil {
		sock, err := listen(ctx, s.Dir)
		switch {
		case err == nil:
			logged = false
			s.serve(ctx, sock)
			continue
		case !logged && ctx.Err() == nil:
			logged = true
			s.Log.WithError(err).Warn("local socket unavailable")
		}
		wait(ctx, checkInterval)
	}
}

// serve serves one socket until ctx ends or the socket's file is removed.
func (s *Server) serve(ctx context.Context, sock *socket) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	work.Go(func() {
		defer cancel()
		s.accept(ctx, sock)
	})
	for ctx.Err() == nil && sock.exists() {
		wait(ctx, checkInterval)
	}
	cancel() // close open connections
	if err := sock.Close(); err != nil {
		s.Log.WithError(err).Debug("local socket not closed")
	}
	work.Wait()
}

func (s *Server) accept(ctx context.Context, sock *socket) {
	slots := make(chan struct{}, requestLimit)
	var work sync.WaitGroup
	defer work.Wait()
	for {
		conn, err := sock.Accept()
		if err != nil {
			if ctx.Err() == nil { // no error if ctx ended: serve has closed the socket
				s.Log.WithError(err).Debug("local socket failed, recreating")
				wait(ctx, time.Second)
			}
			return
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := s.reply(conn); err != nil {
				s.Log.WithError(err).Debug("local request failed")
			}
		})
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *Server) reply(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	var request Request
	if err := json.NewDecoder(io.LimitReader(conn, requestBytes)).Decode(&request); err != nil {
		return err
	}
	r := Reply{Version: Version, At: time.Now().UTC(), Agent: s.Agent(), Processes: []Process{}}
	switch {
	case request.Version != Version:
		r.Error = fmt.Sprintf("version %d of the request is unknown to this agent, which uses version %d", request.Version, Version)
	case request.Query != QueryProcesses:
		r.Error = fmt.Sprintf("query %q is unknown to this agent", request.Query)
	default:
		r.Processes = s.Processes()
	}
	return json.NewEncoder(conn).Encode(&r)
}
