package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"time"
)

// replyBytes is the maximum size of a reply: ten times the size for 10,000 processes.
const replyBytes = 64 << 20

// Query queries the processes of the agent whose data folder is dir. It blocks until the
// reply, for at most 10 s. The error wraps [ErrNoAgent] if no agent runs with the data
// folder.
func Query(ctx context.Context, dir string) (Reply, error) {
	conn, err := dial(ctx, dir)
	if err != nil {
		return Reply{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return Reply{}, err
	}
	if err := json.NewEncoder(conn).Encode(Request{Version: Version, Query: QueryProcesses}); err != nil {
		return Reply{}, fmt.Errorf("the agent did not reply: %w", err)
	}
	return readReply(conn)
}

func readReply(in io.Reader) (Reply, error) {
	var a Reply
	err := json.NewDecoder(io.LimitReader(in, replyBytes)).Decode(&a)
	switch {
	case err != nil:
		return Reply{}, fmt.Errorf("the agent did not reply: %w", err)
	case a.Error != "":
		return Reply{}, errors.New(a.Error)
	case a.Version != Version:
		return Reply{}, fmt.Errorf("the agent replied in version %d, this program reads version %d: use the program of the same installation as the agent", a.Version, Version)
	}
	return a, nil
}

// ErrNoAgent is returned by [Query] if no agent runs with the data folder.
var ErrNoAgent = errors.New("no agent runs there")

// dial connects to the agent whose data folder is dir.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	path := filepath.Join(dir, socketName)
	conn, err := onPath(path, func(path string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: not allowed; run this as the user that the agent runs as, or as root", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w: it has no %s", dir, ErrNoAgent, socketName)
	case refused(err):
		return nil, fmt.Errorf("%s: %w: the previous agent has ended", dir, ErrNoAgent)
	}
	return nil, err
}
