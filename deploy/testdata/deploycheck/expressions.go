package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// use is one metric in an expression.
type use struct {
	Metric string
	Labels []string // labels by which the expression selects or groups
}

// expressions parses a JSON list of PromQL and returns the metrics of each
// expression.
func expressions(in io.Reader) ([][]use, error) {
	var texts []string
	if err := json.NewDecoder(in).Decode(&texts); err != nil {
		return nil, err
	}
	all := make([][]use, len(texts))
	for i, text := range texts {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		all[i] = uses(expr)
	}
	return all, nil
}

func uses(expr parser.Expr) []use {
	var found []use
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, is := node.(*parser.VectorSelector)
		if !is {
			return nil
		}
		u := use{Metric: selector.Name}
		for _, m := range selector.LabelMatchers {
			if m.Name != labels.MetricName {
				u.Labels = append(u.Labels, m.Name)
			}
		}
		for _, above := range path {
			if a, is := above.(*parser.AggregateExpr); is && !a.Without {
				u.Labels = append(u.Labels, a.Grouping...)
			}
		}
		slices.Sort(u.Labels)
		u.Labels = slices.Compact(u.Labels)
		found = append(found, u)
		return nil
	})
	return found
}
