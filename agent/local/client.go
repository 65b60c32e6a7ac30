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

// answerBytes bounds an answer; that of 10,000 processes has a tenth of it.
const answerBytes = 64 << 20

// Ask asks the agent whose data folder is dir for its processes. The error
// wraps [ErrNobody] or [ErrForbidden] where it is one of those.
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
		return Answer{}, fmt.Errorf("the agent did not answer: %w", err)
	}
	return readAnswer(conn)
}

func readAnswer(in io.Reader) (Answer, error) {
	var a Answer
	err := json.NewDecoder(io.LimitReader(in, answerBytes)).Decode(&a)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("the agent did not answer: %w", err)
	case a.Error != "":
		return Answer{}, errors.New(a.Error)
	case a.Version != Version:
		return Answer{}, fmt.Errorf("the agent answers in version %d, this program reads version %d: use that of the agent", a.Version, Version)
	}
	return a, nil
}

// Errors of [Ask].
var (
	// ErrNobody means that no agent runs on that folder.
	ErrNobody = errors.New("no agent runs there")
	// ErrForbidden means that another user may ask.
	ErrForbidden = errors.New("not allowed; ask as the user that the agent runs as, or as root")
)

// dial connects to the agent of a data folder.
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
		return nil, fmt.Errorf("%s: %w: there is no %s in it", dir, ErrNobody, socketName)
	case refused(err):
		return nil, fmt.Errorf("%s: %w: the one that did has ended", dir, ErrNobody)
	}
	return nil, err
}
