package proc

import (
	"slices"
	"testing"
)

func TestPidFileOfSeveralHasOneInEachLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{
		"10\n20\n30\n":                        {10, 20, 30},
		"10\r\n20\r\n":                        {10, 20},
		"\xef\xbb\xbf10\n20":                  {10, 20},
		"\xff\xfe1\x000\x00\r\x00\n\x002\x00": {10, 2},
		"\n\n 10 first\n\t20 second\n":        {10, 20},
		"10\nnone\n-3\n0\n1\n20\n":            {10, 20},
		"10\n10\n20\n":                        {10, 20},
		"10 20\n":                             {10},
		"":                                    nil,
		"\x00\x00":                            nil,
		"99999999999\n10":                     {10},
	} {
		if got := parsePidLines([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: pids are %v, want %v", text, got, want)
		}
	}
}

func FuzzPidLines(f *testing.F) {
	f.Add([]byte("10\r\n20\n"))
	f.Add([]byte("\xff\xfe1\x000\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, pid := range parsePidLines(text) {
			if pid < 2 || pid > maxPid {
				t.Errorf("%q has pid %d", text, pid)
			}
		}
	})
}
