package logging

import (
	"fmt"
	"maps"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/internal/plaintext"
)

// longest is the maximum size of one text in a line, in bytes.
const longest = 16 << 10

// safe writes each entry as exactly one line, although names come from callers and
// hosts, and errors quote such input.
type safe struct{ logrus.Formatter }

// Format implements [logrus.Formatter].
func (s safe) Format(e *logrus.Entry) ([]byte, error) {
	own := *e // the entry and its fields are shared
	own.Message = cut(plaintext.Line(e.Message))
	own.Data = maps.Clone(e.Data)
	for name, value := range e.Data {
		if short, long := shortened(value); long {
			own.Data[name] = short
		}
	}
	line, err := s.Formatter.Format(&own)
	if _, json := s.Formatter.(*logrus.JSONFormatter); json {
		line = plaintext.JSON(line)
	}
	return line, err
}

// shortened returns the text of value, truncated, and whether it was too long.
func shortened(value any) (string, bool) {
	var text string
	switch v := value.(type) {
	case string:
		text = v
	case error:
		text = v.Error()
	case fmt.Stringer:
		text = v.String()
	}
	return cut(text), len(text) > longest
}

func cut(text string) string {
	if len(text) <= longest {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", text[:longest], len(text))
}
