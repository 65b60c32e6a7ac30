package settings

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
)

// Report writes the settings that differ from their defaults, with their origins.
func (s *Settings) Report(out io.Writer) error {
	lines := []string{"configuration is fine"}
	s.flags.VisitAll(func(flag *pflag.Flag) {
		at, set := s.origins[flag.Name]
		if !set || flag.Value.String() == flag.DefValue || flag.Name == CheckFlag {
			return
		}
		where := strings.TrimSuffix(at.name, ": "+flag.Name)
		lines = append(lines, fmt.Sprintf("  %s\t%s\t(%s)", flag.Name, shown(flag), where))
	})
	if len(lines) == 1 {
		lines[0] += "; every setting is the default"
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(lines, "\n"))
	return table.Flush()
}

// shown returns the value of a flag with secrets hidden.
func shown(flag *pflag.Flag) string {
	if value := flag.Value.String(); value == "" {
		return `""`
	}
	for _, word := range []string{"secret", "password", "token"} {
		if strings.Contains(flag.Name, word) && flag.Value.Type() == "string" && !strings.HasSuffix(flag.Name, "-file") {
			return hidden
		}
	}
	// Hide secrets in each URL of a list separately, so that all hosts remain readable.
	text, rest := "", flag.Value.String()
	for next := nextURL.FindStringIndex(rest); next != nil; next = nextURL.FindStringIndex(rest) {
		text, rest = text+shownServer(rest[:next[0]])+",", rest[next[0]+1:]
	}
	return text + shownServer(rest)
}

// shownServer hides the secrets of a server URL, also without a scheme.
func shownServer(text string) string {
	if at := strings.LastIndexByte(text, '@'); at >= 0 && !strings.Contains(text, "://") {
		return hidden + text[at:]
	}
	return withoutSecrets(text)
}

const hidden = "xxxxx"

var (
	nextURL = regexp.MustCompile(`,[a-z]+://`)
	// userInfo matches the user info of a URL: a token, or a user and a password
	// with any characters, including spaces and quotes.
	userInfo = regexp.MustCompile(`://.*@`)
	// secretParameter matches a secret in the query of a URL.
	secretParameter = regexp.MustCompile(`(?i)([?&][a-z_]*(?:password|secret|token)=)[^&\s",]*`)
)

// withoutSecrets hides user info and secret query parameters of URLs in a text.
func withoutSecrets(text string) string {
	return secretParameter.ReplaceAllString(userInfo.ReplaceAllString(text, "://"+hidden+"@"), "${1}"+hidden)
}

// number returns the value of a flag for a whole number or a duration.
func number(flag *pflag.Flag) (int64, bool) {
	switch flag.Value.Type() {
	case "int", "int64":
		n, err := strconv.ParseInt(flag.Value.String(), 10, 64)
		return n, err == nil
	case "duration":
		d, err := time.ParseDuration(flag.Value.String())
		return int64(d), err == nil
	}
	return 0, false
}
