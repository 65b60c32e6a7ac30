package local

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/procfleet/procfleet/internal/testenv"
)

const patience = time.Minute // for machines with much else to do

// serve runs a server on a folder; stop ends it.
func serve(t *testing.T, dir string) (stop func()) {
	t.Helper()
	s := &Server{
		Dir: dir, Log: testenv.Log(t),
		Agent:     func() Agent { return Agent{Host: "0:10.0.0.1"} },
		Processes: func() []Process { return []Process{{Key: "shop:web", NextAction: NextWatch}} },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// asked sends a request and waits for the reply.
func asked(t *testing.T, dir string) Reply {
	t.Helper()
	var a Reply
	testenv.Eventually(t, patience, func() bool {
		var err error
		a, err = Query(t.Context(), dir)
		return err == nil
	}, "the agent of "+dir+" answers")
	return a
}

func TestAgentAnswersInItsFolderHoweverLongItsPath(t *testing.T) {
	t.Parallel()
	short := t.TempDir()
	long := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{short, long} {
		stop := serve(t, dir)
		a := asked(t, dir)
		if a.Agent.Host != "0:10.0.0.1" || len(a.Processes) != 1 || a.Processes[0].Key != "shop:web" || a.At.IsZero() {
			t.Errorf("answer %+v", a)
		}
		if info, err := os.Stat(filepath.Join(dir, socketName)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket is %v, %v", info, err)
		}
		stop()
		if _, err := Query(t.Context(), dir); !errors.Is(err, ErrNoAgent) {
			t.Errorf("after its end: %v", err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestSocketThatAnEarlierAgentLeftIsReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left, err := listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Listener.Close(); err != nil { // as SIGKILL leaves it
		t.Fatal(err)
	}
	if _, err := Query(t.Context(), dir); !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("of an agent that was killed: %v", err)
	}
	serve(t, dir)
	asked(t, dir)
}

func TestSocketIsMadeAgainWithItsFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	serve(t, dir)
	asked(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	asked(t, dir)
}

func TestQuestionsThatAnAgentDoesNotKnowAreRefusedInWords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir)
	asked(t, dir)
	for want, question := range map[string]string{
		"version 2 of the request":   `{"version":2,"ask":"processes"}`,
		`query "secrets" is unknown`: `{"version":1,"ask":"secrets"}`,
	} {
		conn, err := dial(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		var a Reply
		if _, err = conn.Write([]byte(question)); err == nil {
			err = json.NewDecoder(conn).Decode(&a)
		}
		if err != nil || !strings.Contains(a.Error, want) || len(a.Processes) > 0 {
			t.Errorf("%s is answered with %+v, %v", question, a, err)
		}
		conn.Close()
	}
}

func TestAnswersThatCannotBeUsedAreErrors(t *testing.T) {
	t.Parallel()
	for want, answer := range map[string]string{
		"did not reply":                "",
		"unwell":                       `{"version":1,"error":"unwell"}`,
		"this program reads version 1": `{"version":2}`,
	} {
		dir := t.TempDir()
		sock, err := listen(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		go answerWith(sock, answer)
		if _, err := Query(t.Context(), dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answer %q: %v, want %q", answer, err, want)
		}
		if err := sock.Close(); err != nil {
			t.Error(err)
		}
	}
}

func answerWith(l net.Listener, text string) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	var q Request
	if json.NewDecoder(conn).Decode(&q) == nil {
		_, _ = conn.Write([]byte(text)) // the client detects a missing reply
	}
}

func TestNoFolderMeansNoAgent(t *testing.T) {
	t.Parallel()
	_, err := Query(t.Context(), filepath.Join(t.TempDir(), "nowhere"))
	if !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v", err)
	}
}
