package bench

import (
	"slices"
	"time"
)

// quantile of values, which it sorts: 0.5 is the median. There must be some.
func quantile(values []time.Duration, q float64) time.Duration {
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// medianOf returns the median of what column is in each sample.
func medianOf[S any](samples []S, column func(*S) time.Duration) time.Duration {
	values := make([]time.Duration, len(samples))
	for i := range samples {
		values[i] = column(&samples[i])
	}
	return quantile(values, 0.5)
}

// meanOf returns the mean of what column is in each sample.
func meanOf[S any](samples []S, column func(*S) time.Duration) time.Duration {
	var sum time.Duration
	for i := range samples {
		sum += column(&samples[i])
	}
	return sum / time.Duration(len(samples))
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
