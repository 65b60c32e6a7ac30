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

// answerBytes is the maximum size of an answer: ten times the size for 10,000 processes.
const answerBytes = 64 << 20

// Ask queries the processes of the agent whose data folder is dir. It blocks until the
// reply, for at most 10 s. The error wraps [ErrNoAgent] if no agent runs with the data
// folder, and [ErrForbidden] if the user may not query the agent.
func Ask(ctx context.Context, dir string) (Answer, error) {
	conn, err := dial(ctx, dir)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return Answer{}, err
	}
	if err := json.NewEncoder(conn).Encode(Question{Version: Version, Ask: AskProcesses}); err != nil {
		return Answer{}, fmt.Errorf("the agent did not reply: %w", err)
	}
	return readAnswer(conn)
}

func readAnswer(in io.Reader) (Answer, error) {
	var a Answer
	err := json.NewDecoder(io.LimitReader(in, answerBytes)).Decode(&a)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("the agent did not reply: %w", err)
	case a.Error != "":
		return Answer{}, errors.New(a.Error)
	case a.Version != Version:
		return Answer{}, fmt.Errorf("the agent replied in version %d, this program reads version %d: use the program of the agent's release", a.Version, Version)
	}
	return a, nil
}

// Errors of [Ask].
var (
	// ErrNoAgent is returned if no agent runs with the data folder.
	ErrNoAgent = errors.New("no agent runs there")
	// ErrForbidden is returned to users other than the agent's own and root.
	ErrForbidden = errors.New("not allowed; run this as the user that the agent runs as, or as root")
)

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
		return nil, fmt.Errorf("%s: %w", path, ErrForbidden)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w: it has no %s", dir, ErrNoAgent, socketName)
	case refused(err):
		return nil, fmt.Errorf("%s: %w: the previous agent has ended", dir, ErrNoAgent)
	}
	return nil, err
}
