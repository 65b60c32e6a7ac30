package main

import (
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// memory is the series of a test for Prometheus' query engine.
type memory []storage.Series

// add adds a series in promtool's notation, with its first value at time 0.
func (m *memory) add(series, values string, every time.Duration) error {
	name, sequence, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(series + " " + values)
	if err != nil {
		return fmt.Errorf("%s: %w", series, err)
	}
	var samples []chunks.Sample
	for i, v := range sequence {
		if !v.Omitted {
			samples = append(samples, sample{int64(i) * every.Milliseconds(), v.Value})
		}
	}
	*m = append(*m, storage.NewListSeries(name, samples))
	return nil
}

func (m memory) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: m.selected}, nil
}

func (m memory) selected(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &found{at: -1}
	for _, s := range m {
		if matches(s.Labels(), matchers) {
			set.series = append(set.series, s)
		}
	}
	return set
}

func matches(l labels.Labels, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(l.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

// found is a storage.SeriesSet.
type found struct {
	series []storage.Series
	at     int
}

func (f *found) Next() bool                        { f.at++; return f.at < len(f.series) }
func (f *found) At() storage.Series                { return f.series[f.at] }
func (f *found) Err() error                        { return nil }
func (f *found) Warnings() annotations.Annotations { return nil }

// sample is a chunks.Sample.
type sample struct {
	at    int64 // ms
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
