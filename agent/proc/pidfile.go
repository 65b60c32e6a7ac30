package proc

import (
	"bytes"
	"fmt"
	"strconv"
)

// maxPidFile bounds what is read of a pid file, in bytes.
const maxPidFile = 4 << 10

// maxPid is the largest pid that Linux ever hands out (PID_MAX_LIMIT on 64 bit).
const maxPid = 1 << 22

// parsePidFile returns the pid in a pid file: the first word of the first line
// that is not empty. A byte order mark, CR and NUL bytes are tolerated, since
// they occur in files that programs and people really write.
func parsePidFile(text []byte) (int, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	words := bytes.FieldsFunc(text, func(r rune) bool {
		return r == ' ' || r == '\t' || r == '\r' || r == '\n' || r == 0
	})
	if len(words) == 0 {
		return 0, fmt.Errorf("it is empty")
	}
	pid, err := strconv.Atoi(string(words[0]))
	if err != nil {
		return 0, fmt.Errorf("it does not begin with a pid: %.20q", words[0])
	}
	if pid < 2 || pid > maxPid {
		return 0, fmt.Errorf("it names pid %d, which no managed process can have", pid)
	}
	return pid, nil
}
