package web

import (
	"testing"
	"time"
)

func TestSurveysOfAllViewersShareTheTime(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	read := func(ended, requested time.Duration) *cachedSurvey {
		return &cachedSurvey{ended: ago(ended), requested: ago(requested)}
	}
	first := &cachedSurvey{requested: now}
	for name, c := range map[string]struct {
		surveys *surveys
		of      *cachedSurvey
		due     bool
	}{
		"the first one":                        {&surveys{ended: ago(time.Second), took: time.Minute}, first, true},
		"the first one while another is read":  {&surveys{reading: true}, first, false},
		"after a rest":                         {&surveys{ended: ago(time.Minute), took: 6 * time.Second}, read(time.Minute, 0), true},
		"before the end of the rest":           {&surveys{ended: ago(50 * time.Second), took: 6 * time.Second}, read(time.Hour, 0), false},
		"a short one, before a rest":           {&surveys{ended: ago(time.Second), took: time.Millisecond}, read(time.Hour, 0), false},
		"another viewer has waited longer":     {&surveys{ended: ago(time.Hour), cached: map[viewer]*cachedSurvey{{1}: read(2*time.Hour, time.Second)}}, read(time.Hour, 0), false},
		"a viewer who left has waited longer":  {&surveys{ended: ago(time.Hour), cached: map[viewer]*cachedSurvey{{1}: read(2*time.Hour, time.Minute)}}, read(time.Hour, 0), true},
		"another viewer has no survey as yet":  {&surveys{ended: ago(time.Hour), cached: map[viewer]*cachedSurvey{{1}: first}}, read(time.Hour, 0), false},
		"this one has waited longer than most": {&surveys{ended: ago(time.Minute), cached: map[viewer]*cachedSurvey{{1}: read(time.Minute, 0)}}, read(time.Hour, 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			if due := c.surveys.due(c.of); due != c.due {
				t.Errorf("due %t, want %t", due, c.due)
			}
		})
	}
}
