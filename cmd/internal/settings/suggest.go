package settings

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/internal/spelling"
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
	var names []string
	visit(root, func(flag *pflag.Flag) { names = append(names, flag.Name) })
	return spelling.Nearest(word, names)
}

// visit calls fn for the flags of cmd and its subcommands.
func visit(cmd *cobra.Command, fn func(*pflag.Flag)) {
	cmd.Flags().VisitAll(fn)
	cmd.PersistentFlags().VisitAll(fn)
	for _, sub := range cmd.Commands() {
		visit(sub, fn)
	}
}
