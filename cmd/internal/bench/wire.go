package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/procfleet/procfleet"
)

// wire is one keep-alive HTTP connection, driven by hand: a client of full
// size would use as much of the machine as what is measured. It is for one
// goroutine at a time.
type wire struct {
	address string
	conn    net.Conn
	r       *bufio.Reader
	request []byte
}

func dial(ctx context.Context, address string) (*wire, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &wire{address: address, conn: conn, r: bufio.NewReaderSize(conn, 32<<10)}, nil
}

func (w *wire) close() { _ = w.conn.Close() } // nothing is lost with it

// call sends a request, with a body if method is POST, and hands the body of
// the answer to read. Any status but 2xx is an error.
func (w *wire) call(method, path, header string, body []byte, read func(io.Reader) error) error {
	b := append(w.request[:0], method+" "+path+" HTTP/1.1\r\nHost: "+w.address+"\r\n"+header...)
	if body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n"...)
	}
	w.request = append(append(b, "\r\n"...), body...)
	if err := w.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := w.conn.Write(w.request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		const shown = 300
		text, _ := io.ReadAll(io.LimitReader(resp.Body, shown)) // what can be read of it
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	if err := read(resp.Body); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	_, err = io.Copy(io.Discard, resp.Body) // up to the next answer
	if err == nil && resp.Close {
		// As who answers for a dispatcher that starts does: the next request is for
		// the dispatcher itself, on another connection.
		err = fmt.Errorf("%s %s: %w", method, path, errLastAnswer)
	}
	return err
}

var errLastAnswer = errors.New("the server answers no more on this connection")

// submit posts a submission and returns the task's id.
func (w *wire) submit(submission []byte, header string) (procfleet.TaskID, error) {
	var answer struct {
		ID procfleet.TaskID `json:"id"`
	}
	err := w.call(http.MethodPost, "/v1/tasks", header, submission, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&answer)
	})
	return answer.ID, err
}
