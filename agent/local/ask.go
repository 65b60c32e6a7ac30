package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
