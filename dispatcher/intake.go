package dispatcher

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
)

// intake takes what producers publish and makes tasks of it, by the same
// dialects and the same submitter as for HTTP. All dispatchers share one
// consumer.
//
// A dispatcher that dies between acceptance and acknowledgement must not make
// a second task when the message comes again. So each acceptance has an
// idempotency key: the producer's, or one of the message's place in the
// stream.
type intake struct {
	api       *api
	bus       *bus.Bus
	entrances map[string]entrance // by the name of the call
	names     string              // of the calls, for people
	log       logrus.FieldLogger
	// alone is held by the one message under suspicion that is tried.
	alone chan struct{}
	// again is after what time a message comes a second time that was put
	// off once; it doubles with each delivery.
	again time.Duration
	said  oncePerSecond
}

// entrance is a call through which operations are accepted.
type entrance struct {
	dialect *dialect.Dialect
	call    string
	use     dialect.Accept
}

// nativeCall is the call of a message that names none.
const nativeCall = "native"

func newIntake(a *api, dialects []dialect.Dialect) *intake {
	in := &intake{
		api: a, bus: a.cfg.Submissions, entrances: map[string]entrance{}, log: a.log, alone: make(chan struct{}, 1), again: time.Second,
	}
	var names []string
	for i := range dialects {
		for _, call := range dialects[i].Calls {
			if use, ok := call.Use.(dialect.Accept); ok {
				in.entrances[call.Name] = entrance{&dialects[i], call.Name, use}
				names = append(names, call.Name)
			}
		}
	}
	slices.Sort(names)
	in.names = strings.Join(names, ", ")
	return in
}

const (
	// pullWait bounds one request for messages, and so how long after its
	// end is asked for a dispatcher may still get one.
	pullWait = time.Second
	// Pauses while nothing can be pulled, or what was pulled not accepted.
	leastPause, mostPause = 250 * time.Millisecond, 5 * time.Second
)

// run pulls until ctx ends, and returns when all that was pulled is finished
// or Timeouts.Drain has passed; what is not finished then comes again.
func (in *intake) run(ctx context.Context) {
	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var taken sync.WaitGroup
	in.pullAll(ctx, func(s *bus.Submission, leave func()) {
		taken.Go(func() {
			defer leave()
			in.take(ctx, work, s)
		})
	})
	over := make(chan struct{})
	go func() { taken.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(in.api.cfg.Timeouts.Drain):
		in.log.Warn("submissions left to other dispatchers at the end of draining")
	}
}

// pullAll pulls as much as there are places until ctx ends. Who takes a
// message must leave its place.
func (in *intake) pullAll(ctx context.Context, take func(s *bus.Submission, leave func())) {
	places := make(chan struct{}, in.api.cfg.Limits.Submissions)
	var from *bus.Submissions
	wait := leastPause
	for ctx.Err() == nil {
		err := in.pull(ctx, &from, places, take)
		if err == nil {
			wait = leastPause
			continue
		}
		if in.said.due(time.Now()) && ctx.Err() == nil {
			in.log.WithError(err).Warn("no submissions can be pulled, will keep trying")
		}
		from = nil
		pause(ctx, jitter(wait))
		wait = min(2*wait, mostPause)
	}
}

// pull takes one place at least, and asks for as many messages as are free.
func (in *intake) pull(ctx context.Context, from **bus.Submissions, places chan struct{}, take func(*bus.Submission, func())) error {
	if *from == nil {
		opened, err := in.bus.OpenSubmissions(ctx)
		if err != nil {
			return err
		}
		*from = opened
	}
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	n := 1
	for ; n < cap(places); n++ {
		select {
		case places <- struct{}{}:
			continue
		default:
		}
		break
	}
	leave := func() { <-places }
	err := (*from).Fetch(n, pullWait, func(s *bus.Submission) {
		n--
		take(s, leave)
	})
	for ; n > 0; n-- {
		leave()
	}
	return err
}

// keep tells the server that a message is worked on, until stop is called.
func keep(s *bus.Submission) (stop func()) {
	over := make(chan struct{})
	go func() {
		ticker := time.NewTicker(max(s.Patience/3, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				// A lost sign costs a second delivery, which finds the same task.
				_ = s.Working()
			}
		}
	}()
	return sync.OnceFunc(func() { close(over) })
}

// errPoisoned ends a message over which dispatchers died again and again.
var errPoisoned = errors.New("the dispatcher broke off each time it tried; whether a task was made is not known: look for it before you publish this again")

const (
	// trusted is how many deliveries of a message need no suspicion.
	trusted = 2
	// maxTrials is how often the message may break off a dispatcher after that.
	maxTrials = 3
)

// suspect decides over a message that was delivered before. Dispatchers die
// with all that they have in hand, so the messages which came back are tried
// one by one, each with a note that stays if the dispatcher dies of it. It
// returns errPoisoned for one that has too many; done is told whether
// the try came to an end.
func (in *intake) suspect(ctx context.Context, s *bus.Submission) (done func(ended bool), err error) {
	if s.Delivered <= trusted {
		return func(bool) {}, nil
	}
	select {
	case in.alone <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	leave := func() { <-in.alone }
	n, err := in.bus.Trials(ctx, s)
	if err == nil && n >= maxTrials {
		err = errPoisoned
	}
	if err == nil {
		err = in.bus.BeginTrial(ctx, s, n+1)
	}
	if err != nil {
		leave()
		return nil, err
	}
	return func(ended bool) {
		defer leave()
		if !ended {
			return
		}
		if err := in.bus.EndTrial(ctx, s, n); err != nil {
			in.log.WithError(err).Warn("a trial that ended stays noted")
		}
	}, nil
}
