package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// ruleTests has the used fields of the files of `promtool test rules`.
type ruleTests struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []ruleTest     `yaml:"tests"`
}

type ruleTest struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		EvalTime model.Duration `yaml:"eval_time"`
		Name     string         `yaml:"alertname"`
		Expected []struct {
			Labels map[string]string `yaml:"exp_labels"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

// judged is an alert and the results of its tests.
type judged struct {
	rulefmt.Rule
	Fired, Silent bool // in some test
}

// alerts parses the rules like Prometheus, runs the tests, and returns the rules.
// An alert fires if its expression has the same labels at every evaluation for the
// duration in its "for".
func alerts(ctx context.Context, rulesFile, testsFile string) ([]*judged, error) {
	rules, err := readRules(rulesFile)
	if err != nil {
		return nil, err
	}
	tests, err := readTests(testsFile)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, test := range tests.Tests {
		if err := runTest(ctx, rules, test, time.Duration(tests.EvaluationInterval)); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", test.Name, err))
		}
	}
	return slices.SortedFunc(maps.Values(rules), func(a, b *judged) int { return strings.Compare(a.Alert, b.Alert) }), errors.Join(problems...)
}

func readRules(file string) (map[string]*judged, error) {
	groups, problems := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), nil)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	rules := map[string]*judged{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || rules[rule.Alert] != nil {
				return nil, fmt.Errorf("%s: rule %q is not an alert with a unique name", group.Name, rule.Alert+rule.Record)
			}
			rules[rule.Alert] = &judged{Rule: rule}
		}
	}
	return rules, nil
}

func readTests(file string) (ruleTests, error) {
	in, err := os.Open(file)
	if err != nil {
		return ruleTests{}, err
	}
	defer in.Close()
	var tests ruleTests
	decoder := yaml.NewDecoder(in)
	decoder.KnownFields(true)
	return tests, decoder.Decode(&tests)
}

func runTest(ctx context.Context, rules map[string]*judged, test ruleTest, every time.Duration) error {
	var series memory
	for _, s := range test.InputSeries {
		if err := series.add(s.Series, s.Values, time.Duration(test.Interval)); err != nil {
			return err
		}
	}
	for _, a := range test.Alerts {
		rule := rules[a.Name]
		if rule == nil {
			return fmt.Errorf("unknown alert %s", a.Name)
		}
		firing, err := series.firing(ctx, rule.Rule, time.Duration(a.EvalTime), every)
		if err != nil {
			return err
		}
		var want []string
		for _, e := range a.Expected {
			want = append(want, fmt.Sprint(e.Labels))
		}
		slices.Sort(want)
		if !slices.Equal(firing, want) {
			return fmt.Errorf("at %s %s fires for %q, want %q", a.EvalTime, a.Name, firing, want)
		}
		rule.Fired, rule.Silent = rule.Fired || len(want) > 0, rule.Silent || len(want) == 0
	}
	return nil
}

// firing returns the labels with which an alert fires at a time, in order.
func (m memory) firing(ctx context.Context, rule rulefmt.Rule, at, every time.Duration) ([]string, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	begin := time.Unix(0, 0)
	from, to := begin.Add(at-time.Duration(rule.For)), begin.Add(at)
	query, err := engine.NewRangeQuery(ctx, m, nil, rule.Expr, from, to, every)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result, err := query.Exec(ctx).Matrix()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rule.Alert, err)
	}
	steps := int(to.Sub(from)/every) + 1
	var found []string
	for _, s := range result {
		if len(s.Floats) < steps {
			continue
		}
		with := s.Metric.Map()
		delete(with, model.MetricNameLabel)
		maps.Copy(with, rule.Labels)
		found = append(found, fmt.Sprint(with))
	}
	slices.Sort(found)
	return found, nil
}
