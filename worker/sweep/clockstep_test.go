package sweep

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/procfleet/procfleet"
)

// TestALastCallEndsThoughTheStoresClockStepsBack: an overdue task whose agent was asked for its
// results stayed open for the size of the step.
func TestALastCallEndsThoughTheStoresClockStepsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Timing: Timing{LastCall: 10 * time.Second}})
		r := &repair{progress: &progress{moved: true}, now: time.Now()}
		if left, err := s.lastCall(t.Context(), r); left != 10*time.Second || err != nil {
			t.Fatalf("%s to wait, %v", left, err)
		}
		time.Sleep(4 * time.Second)
		r.now = r.now.Add(-43 * time.Minute)
		if left, err := s.lastCall(t.Context(), r); left != 6*time.Second || err != nil {
			t.Fatalf("after a step back %s to wait, %v", left, err)
		}
	})
}

// TestWaitingHostsAreVisitedThoughTheStoresClockStepsBack: hosts that had returned, and a queue that
// had ended, waited for the size of the step.
func TestWaitingHostsAreVisitedThoughTheStoresClockStepsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, now := New(Config{}), time.Now()
		task := &procfleet.Task{ID: "GSETASK:1:1", CreatedAt: now, Rollout: &procfleet.Rollout{Plan: procfleet.RolloutPlan{Queue: time.Minute}}}
		now = now.Add(-43 * time.Minute)
		if s.queueEnded(task, now) {
			t.Error("the queue ended at once")
		}
		if !s.queueEnded(task, now.Add(time.Minute)) {
			t.Error("the queue goes on for longer than a minute after the step")
		}
		visit, due := s.waiting.begin(task.ID)
		if !due {
			t.Fatal("the first visit is not due")
		}
		visit.at = time.Now()
		s.waiting.end(task.ID, visit)
		if _, due := s.waiting.begin(task.ID); due {
			t.Error("two visits at once")
		}
		time.Sleep(waitingEvery)
		if _, due := s.waiting.begin(task.ID); !due {
			t.Error("no second visit")
		}
	})
}
