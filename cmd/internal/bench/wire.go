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

// wire is a minimal HTTP client with one keep-alive connection. A full client would use as
// much processor time as the system under test. wire is not safe for concurrent use.
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

func (w *wire) close() { _ = w.conn.Close() } // no open request

// call sends a request, with body if method is POST, and passes the response body to read.
// It returns an error if the status is not 2xx.
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
		text, _ := io.ReadAll(io.LimitReader(resp.Body, shown)) // a partial text is sufficient for the error
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	if err := read(resp.Body); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	_, err = io.Copy(io.Discard, resp.Body) // discard the rest so that the connection can be reused
	if err == nil && resp.Close {
		// A starting dispatcher closes the connection after its response. The caller must
		// open another connection for the next request.
		err = fmt.Errorf("%s %s: %w", method, path, errLastAnswer)
	}
	return err
}

var errLastAnswer = errors.New("the server closed the connection")

// submit posts a submission and returns the task id from the response.
func (w *wire) submit(submission []byte, header string) (procfleet.TaskID, error) {
	var answer struct {
		ID procfleet.TaskID `json:"id"`
	}
	err := w.call(http.MethodPost, "/v1/tasks", header, submission, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&answer)
	})
	return answer.ID, err
}
