package main

import (
	"strings"
	"testing"
)

func TestMatrixNamesEveryFaultOnce(t *testing.T) {
	t.Parallel()
	for i, f := range faults {
		if f.number != i+1 || f.text == "" || f.level == "" {
			t.Errorf("row %d is %+v", i, f)
		}
	}
	if len(faults) != 105 {
		t.Errorf("%d faults", len(faults))
	}
}

func TestOutcomesOfARowAreCombined(t *testing.T) {
	t.Parallel()
	events := `{"Action":"run","Package":"a","Test":"TestFaultMatrix/F1_x"}
{"Action":"pass","Package":"a","Test":"TestFaultMatrix/F1_x"}
{"Action":"pass","Package":"b","Test":"TestFaultMatrix/F1_y"}
{"Action":"pass","Package":"b","Test":"TestFaultMatrix/F1_y/part"}
{"Action":"output","Package":"b","Test":"TestFaultMatrix/F2_z","Output":"    z_test.go:1: NOT CHECKED: no such kernel\n"}
{"Action":"skip","Package":"b","Test":"TestFaultMatrix/F2_z"}
{"Action":"fail","Package":"b","Test":"TestFaultMatrix/F3_w"}
`
	outcomes, err := read(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	if o := outcomes[1]; o.passed != 2 || o.failed != 0 {
		t.Errorf("F1 is %+v", o)
	}
	if o := outcomes[2]; o.passed != 0 || o.skipped != "no such kernel" {
		t.Errorf("F2 is %+v", o)
	}
	_, err = list(outcomes)
	if err == nil || !strings.Contains(err.Error(), "failed: F3") || !strings.Contains(err.Error(), "no test for F4") || strings.Contains(err.Error(), "F1\n") {
		t.Errorf("error is %v", err)
	}
}
