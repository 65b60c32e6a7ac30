package procfleet

import (
	"errors"
	"fmt"
	"regexp/syntax"
)

// boundArgsPattern checks [ProcessSpec.ArgsPattern]: agents compile it and hold
// it against every process of the program.
func (s *ProcessSpec) boundArgsPattern() error {
	pattern := textField{"args_pattern", s.ArgsPattern}
	if err := boundText(pattern, MaxPath); err != nil {
		return err
	}
	parsed, err := syntax.Parse(pattern.text, syntax.Perl)
	if err != nil {
		return &FieldError{pattern.name, "is not a regular expression (RE2): " + problemOf(err)}
	}
	if n := spelledOut(parsed); n > MaxPath {
		return &FieldError{pattern.name, fmt.Sprintf("repeats too much: with every {n} written out it has %d parts, at most %d are allowed", n, MaxPath)}
	}
	return nil
}

func problemOf(err error) string {
	if bad, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Sprintf("%s: %q", bad.Code, clip(bad.Expr))
	}
	return err.Error()
}

// spelledOut is about how many instructions an expression compiles to: x{1000}
// is short, and takes as long to match as a thousand x.
func spelledOut(re *syntax.Regexp) int {
	n := 0
	for _, sub := range re.Sub {
		n += spelledOut(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpRepeat:
		return n * max(re.Min, re.Max)
	default:
		return n + 1
	}
}
