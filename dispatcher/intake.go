package dispatcher

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/dispatcher/dialect"
	"github.com/procfleet/procfleet/internal/bus"
	"github.com/procfleet/procfleet/taskstore"
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
	clock     taskstore.Clock     // of the store
	entrances map[string]entrance // by the name of the call
	names     string              // of the calls, for people
	log       logrus.FieldLogger
	// alone is held by the one message under suspicion that is tried.
	alone chan struct{}
	// again is after what time a message comes a second time that was put
	// off once; it doubles with each delivery.
	again time.Duration
	said  oncePerSecond
	depth submitDepth
}

// entrance is a call through which operations are accepted.
type entrance struct {
	family dialect.Family
	call   string
	accept dialect.Accept
}

// nativeCall is the call of a message that names none.
const nativeCall = "native"

func newIntake(a *api, clock taskstore.Clock, dialects []dialect.Dialect) *intake {
	in := &intake{
		api: a, bus: a.cfg.Submissions, clock: clock, entrances: map[string]entrance{}, log: a.log,
		alone: make(chan struct{}, 1), again: time.Second,
	}
	for i := range dialects {
		for _, family := range slices.Backward(dialects[i].Reached()) { // a call's first family counts
			for _, call := range family.Calls {
				if accept, ok := call.Endpoint.(dialect.Accept); ok {
					in.entrances[call.Name] = entrance{family, call.Name, accept}
				}
			}
		}
	}
	in.names = strings.Join(slices.Sorted(maps.Keys(in.entrances)), ", ")
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
	taken.Go(func() { in.depth.watch(ctx, in.bus) })
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
		in.log.Warn("submissions left at the drain timeout")
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
			in.log.WithError(err).Warn("pulling submissions failed, retrying")
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
var errPoisoned = errors.New("dispatchers broke off each time they tried, for reasons that their logs tell; whether a task was made is not known: look for it before you publish this again")

const (
	// trusted is how many deliveries of a message need no suspicion.
	trusted = 2
	// maxTrials is how often the message may break off a dispatcher after that.
	maxTrials = 3
)

// trial is the try of one message. If the message was delivered before, the
// try leaves a note that stays if the dispatcher dies of it.
type trial struct {
	// acquit takes the note back: whatever went wrong was not the message's
	// fault. over ends the trial, with the note if it was not taken back.
	// Both may be called again.
	acquit, over func()
}

// suspect begins the trial of a message. Dispatchers die with all that they
// have in hand, so the messages which came back are tried one by one. It
// returns errPoisoned for one that broke off too many dispatchers.
//
// While the store is away nothing is noted: no failure, and no death either,
// then says anything about the message.
func (in *intake) suspect(ctx context.Context, s *bus.Submission, name string) (trial, error) {
	nothing := func() {}
	if s.Delivered <= trusted || !in.storeAnswers(ctx) {
		return trial{nothing, nothing}, nil
	}
	select {
	case in.alone <- struct{}{}:
	case <-ctx.Done():
		return trial{}, context.Cause(ctx)
	}
	over := sync.OnceFunc(func() { <-in.alone })
	note := in.bus.NewTrial(s, name)
	n, err := note.Before(ctx)
	if err == nil && n >= maxTrials {
		err = errPoisoned
	}
	if err != nil {
		over()
		return trial{}, err
	}
	acquit := sync.OnceFunc(func() { defer over(); in.takeBack(ctx, note) })
	if err := note.Begin(ctx); err != nil {
		acquit()
		return trial{}, err
	}
	return trial{acquit, over}, nil
}

// takeBack tries until the note is gone, for as long as messages are pulled:
// if it cannot be reached now, that is no reason to hold it against the
// message.
func (in *intake) takeBack(pulling context.Context, note *bus.Trial) {
	end := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(pulling), in.api.cfg.Timeouts.Accept)
		defer cancel()
		return note.End(ctx)
	}
	wait := leastPause
	for err := end(); err != nil; err = end() {
		if !errors.Is(err, bus.ErrUnavailable) || !pause(pulling, jitter(wait)) {
			in.log.WithError(err).Warn("trial record not removed")
			return
		}
		wait = min(2*wait, mostPause)
	}
}

// storeAnswers reports whether the store is there at this moment.
func (in *intake) storeAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, in.api.cfg.Timeouts.Accept)
	defer cancel()
	_, err := in.clock.Now(ctx)
	return err == nil
}
