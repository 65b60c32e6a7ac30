package settings

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noSuchSetting returns the error message for an unknown key, with the nearest name.
func noSuchSetting(root *cobra.Command, key string) string {
	meant := nearest(root, key)
	if meant == "" {
		return "no such setting; settings are named like flags, without the dashes before them"
	}
	return fmt.Sprintf("no such setting; did you mean %q?", meant)
}

// nearest returns the flag with the most similar name, or "".
func nearest(root *cobra.Command, key string) string {
	word := strings.ToLower(strings.ReplaceAll(strings.TrimLeft(key, "-"), "_", "-"))
	best, least := "", max(2, len(word)/3)+1
	visit(root, func(flag *pflag.Flag) {
		if d := distance(word, flag.Name); d < least || d == least && best != "" && flag.Name < best {
			best, least = flag.Name, d
		}
	})
	return best
}

// visit calls fn for the flags of cmd and its subcommands.
func visit(cmd *cobra.Command, fn func(*pflag.Flag)) {
	cmd.Flags().VisitAll(fn)
	cmd.PersistentFlags().VisitAll(fn)
	for _, sub := range cmd.Commands() {
		visit(sub, fn)
	}
}

// distance returns the Levenshtein distance between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a prefix of a to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
