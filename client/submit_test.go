package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

var host = mustHost("0:10.0.0.1")

func mustHost(text string) procfleet.Host {
	h, err := procfleet.ParseHost(text)
	if err != nil {
		panic(err)
	}
	return h
}

func statusOperation() client.Submission {
	return client.Submission{Operations: []client.Operation{{
		Action: procfleet.ActionStatus, Process: procfleet.ProcessSpec{ProcName: "x"}, Hosts: []procfleet.Host{host},
	}}}
}

const (
	created     = `{"id":"GSETASK:1"}`
	unavailable = `{"error":{"code":"unavailable","message":"the queue is full"}}`
	unknown     = `{"error":{"code":"unknown","message":"unknown whether task GSETASK:1:2 was accepted","task":"GSETASK:1:2"}}`
)

// bookkeeper is a dispatcher that remembers tasks by their key.
type bookkeeper struct {
	keys  []string        // of every request
	tasks map[string]bool // by key
}

func (b *bookkeeper) accept(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the body does not matter here
	key := r.Header.Get("Idempotency-Key")
	b.keys = append(b.keys, key)
	if b.tasks == nil {
		b.tasks = make(map[string]bool)
	}
	b.tasks[key] = true
}

func TestSubmitSendsTheDocumentedBody(t *testing.T) {
	t.Parallel()
	one := statusOperation()
	one.Timeout, one.Business, one.Callback = procfleet.Seconds(90), "2", "http://x/done"
	two := statusOperation()
	two.Operations = append(two.Operations, client.Operation{Action: procfleet.ActionKill, Agents: []string{"a-1"}})
	for want, s := range map[string]client.Submission{
		`{"action":"status","process":{"proc_name":"x",`:                one,
		`"hosts":["0:10.0.0.1"],"timeout":"1m30s","business":"2",`:      one,
		`"callback":"http://x/done"}`:                                   one,
		`{"operations":[{"action":"status","process":{"proc_name":"x",`: two,
		`"agents":["a-1"]}]}`:                                           two,
		`{"operations":[]}`:                                             {},
	} {
		inBubble(t, func(t *network) {
			t.serve("a", func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Method != http.MethodPost || r.URL.Path != "/v1/tasks" || !strings.Contains(string(body), want) {
					t.Errorf("%s %s: %s has no %s", r.Method, r.URL, body, want)
				}
				for name, want := range map[string]string{
					"Idempotency-Key": "k", "Authorization": "Bearer shop.secret", "Content-Type": "application/json",
				} {
					if got := r.Header.Get(name); got != want {
						t.Errorf("%s is %q, want %q", name, got, want)
					}
				}
				answer(w, http.StatusCreated, created)
			})
			s.IdempotencyKey = "k"
			id, err := t.client(client.Config{Token: "shop.secret"}).Submit(t.Context(), s)
			if err != nil || id != "GSETASK:1" {
				t.Errorf("id %q, %v", id, err)
			}
		})
	}
}

func TestEverySubmitHasAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		var b bookkeeper
		t.serve("a", func(w http.ResponseWriter, r *http.Request) { b.accept(r); answer(w, http.StatusCreated, created) })
		c := t.client(client.Config{})
		for range 2 {
			if _, err := c.Submit(t.Context(), statusOperation()); err != nil {
				t.Error(err)
			}
		}
		if len(b.tasks) != 2 || b.tasks[""] {
			t.Errorf("keys %v", b.keys)
		}
	})
}

// If responses are lost or rejected by proxies, one submission still creates one task.
func TestSubmitRepeatsUnderTheSameKey(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]http.HandlerFunc{
		"busy":                 func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusServiceUnavailable, unavailable) },
		"outcome unknown":      func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusServiceUnavailable, unknown) },
		"bad gateway":          func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusBadGateway, "<html>") },
		"too many requests":    func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusTooManyRequests, "") },
		"cut before an answer": func(http.ResponseWriter, *http.Request) { cut() },
		"cut in the answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			answer(w, http.StatusCreated, `{"id":`)
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) { hold(r) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				var b bookkeeper
				t.serve("a", func(w http.ResponseWriter, r *http.Request) {
					if b.accept(r); len(b.keys) <= 3 {
						trouble(w, r)
						return
					}
					answer(w, http.StatusCreated, created)
				})
				told := 0
				id, err := t.client(client.Config{Trouble: func(error) { told++ }}).Submit(t.Context(), statusOperation())
				if err != nil || id != "GSETASK:1" || len(b.tasks) != 1 || len(b.keys) != 4 || told != 1 {
					t.Errorf("id %q, %v; keys %v; told %d times", id, err, b.keys, told)
				}
			})
		})
	}
}

func TestTheServerSaysWhenToComeAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := 0
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls == 1 {
				w.Header().Set("Retry-After", "20")
				answer(w, http.StatusServiceUnavailable, unavailable)
				return
			}
			answer(w, http.StatusCreated, created)
		})
		begun := time.Now()
		if _, err := t.client(client.Config{}).Submit(t.Context(), statusOperation()); err != nil || time.Since(begun) != 20*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

func TestARefusalIsToldOnceWithAllThatTheServerSaid(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := 0
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			calls++
			w.Header().Set("X-Bkapi-Request-Id", "r-1")
			answer(w, http.StatusBadRequest, `{"error":{"code":"invalid_request","message":"is empty","field":"process.proc_name"}}`)
		})
		_, err := t.client(client.Config{}).Submit(t.Context(), statusOperation())
		want := client.Error{Status: http.StatusBadRequest, Code: "invalid_request", Field: "process.proc_name", Message: "is empty", RequestID: "r-1"}
		var refusal *client.Error
		if !errors.As(err, &refusal) || *refusal != want || calls != 1 {
			t.Errorf("%d calls, %#v", calls, err)
		}
		if err.Error() != "process.proc_name: is empty" || !errors.Is(err, client.ErrInvalid) || errors.Is(err, client.ErrUnknown) {
			t.Errorf("%v", err)
		}
	})
}

func TestAnotherServerTakesOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		var b bookkeeper
		t.serve("a", func(_ http.ResponseWriter, r *http.Request) { b.accept(r); cut() }) // stored, then died
		t.serve("b", func(w http.ResponseWriter, r *http.Request) { b.accept(r); answer(w, http.StatusCreated, created) })
		c := t.client(client.Config{URL: "http://gone, http://a/,http://b"})
		begun := time.Now()
		for range 2 {
			if _, err := c.Submit(t.Context(), statusOperation()); err != nil {
				t.Error(err)
			}
		}
		if time.Since(begun) != 0 {
			t.Errorf("it took %v although one server was well", time.Since(begun))
		}
		if len(b.keys) != 3 || b.keys[0] != b.keys[1] || b.keys[1] == b.keys[2] {
			t.Errorf("keys %v: want one that two servers saw, and one that went to the good server at once", b.keys)
		}
	})
}

func TestPatienceHasAnEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler  http.HandlerFunc
		patience time.Duration
		unknown  bool
		kind     error
	}{
		"no server":       {nil, time.Minute, false, client.ErrUnreachable},
		"no repetition":   {nil, -1, false, client.ErrUnreachable},
		"busy":            {func(w http.ResponseWriter, _ *http.Request) { answer(w, 503, unavailable) }, time.Minute, false, client.ErrUnavailable},
		"unknown outcome": {func(w http.ResponseWriter, _ *http.Request) { answer(w, 503, unknown) }, time.Minute, true, client.ErrUnavailable},
		"a proxy lost it": {func(w http.ResponseWriter, _ *http.Request) { answer(w, 503, "upstream reset before headers") }, time.Minute, true, client.ErrUnavailable},
		"answers lost":    {func(http.ResponseWriter, *http.Request) { cut() }, time.Minute, true, client.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				if test.handler != nil {
					t.serve("a", test.handler)
				}
				begun := time.Now()
				s := statusOperation()
				s.IdempotencyKey = "k"
				_, err := t.client(client.Config{Patience: test.patience}).Submit(t.Context(), s)
				if !errors.Is(err, test.kind) || errors.Is(err, client.ErrUnknown) != test.unknown {
					t.Errorf("%v", err)
				}
				if took := time.Since(begun); took != max(test.patience, 0) {
					t.Errorf("gave up after %v, want %v", took, test.patience)
				}
				var doubt *client.UnknownError
				if errors.As(err, &doubt) && doubt.IdempotencyKey != "k" {
					t.Errorf("key %q", doubt.IdempotencyKey)
				}
			})
		})
	}
}

func TestAnUnknownOutcomeNamesTheTask(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusServiceUnavailable, unknown) })
		_, err := t.client(client.Config{Patience: -1}).Submit(t.Context(), statusOperation())
		var doubt *client.UnknownError
		if !errors.As(err, &doubt) || doubt.Task != "GSETASK:1:2" || doubt.IdempotencyKey == "" {
			t.Errorf("%#v", err)
		}
	})
}

func TestARefusalAfterALostAnswerIsNoDoubt(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		calls := 0
		t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls == 1 {
				cut()
			}
			answer(w, http.StatusConflict, `{"error":{"code":"conflict","message":"used for another request"}}`)
		})
		_, err := t.client(client.Config{}).Submit(t.Context(), statusOperation())
		if !errors.Is(err, client.ErrConflict) || errors.Is(err, client.ErrUnknown) {
			t.Errorf("%v", err)
		}
	})
}

// A rejection by a proxy does not say whether the server accepted an earlier attempt.
func TestAProxysRefusalAfterALostAnswerLeavesTheDoubt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge} {
		inBubble(t, func(t *network) {
			calls := 0
			t.serve("a", func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls == 1 {
					cut()
				}
				answer(w, status, "<html>")
			})
			_, err := t.client(client.Config{}).Submit(t.Context(), statusOperation())
			if !errors.Is(err, client.ErrBadResponse) || !errors.Is(err, client.ErrUnknown) || calls != 2 {
				t.Errorf("%d: after %d calls %v", status, calls, err)
			}
		})
	}
}

func TestTheEndOfTheContextEndsACall(t *testing.T) {
	t.Parallel()
	interrupted := errors.New("received interrupt")
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		unknown bool
	}{
		"while it waits for an answer": {func(_ http.ResponseWriter, r *http.Request) { hold(r) }, true},
		"between two attempts":         {func(w http.ResponseWriter, _ *http.Request) { answer(w, 503, unavailable) }, false},
		"without a server":             {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				if test.handler != nil {
					t.serve("a", test.handler)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(7*time.Second, func() { cancel(interrupted) })
				begun := time.Now()
				_, err := t.client(client.Config{}).Submit(ctx, statusOperation())
				if took := time.Since(begun); took != 7*time.Second {
					t.Errorf("it took %v", took)
				}
				if !errors.Is(err, context.Canceled) || !errors.Is(err, interrupted) || errors.Is(err, client.ErrUnknown) != test.unknown {
					t.Errorf("%v", err)
				}
				synctest.Wait()
			})
		})
	}
}

func TestWhatWasNeverSentIsNoDoubt(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *network) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := t.client(client.Config{}).Submit(ctx, statusOperation()); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnknown) {
			t.Errorf("%v", err)
		}
	})
}

func TestAnotherKindOfServerIsNoticed(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"a page": "<html>", "no id": "{}", "a list": "[]", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *network) {
				t.serve("a", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, body) })
				_, err := t.client(client.Config{}).Submit(t.Context(), statusOperation())
				if !errors.Is(err, client.ErrBadResponse) || !errors.Is(err, client.ErrUnknown) || !strings.Contains(err.Error(), "http://a/v1/tasks") {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

func TestAKeyThatNoHeaderCanHaveIsRefused(t *testing.T) {
	t.Parallel()
	c, err := client.New(client.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a\nb", "ключ", strings.Repeat("x", 256)} {
		s := statusOperation()
		s.IdempotencyKey = key
		if _, err := c.Submit(t.Context(), s); err == nil || errors.Is(err, client.ErrUnreachable) {
			t.Errorf("%q: %v", key, err)
		}
	}
}
