// Package settings gives every flag of a command two more sources: an
// environment variable and a YAML file. A flag counts before the environment,
// the environment before the file.
package settings

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Flag is the name of the flag that names the file; a command without it has
// no file.
const Flag = "config"

// Variable returns the environment variable of a flag: nats-listen is
// PROCFLEET_NATS_LISTEN.
func Variable(flag string) string {
	return "PROCFLEET_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Fill sets the flags of cmd that were not given. It reports every value that
// a flag does not take, with its source, and every key of the file that no
// command of this program has.
func Fill(cmd *cobra.Command) error {
	var errs []error
	set := func(flag *pflag.Flag, value, source string) {
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", source, err))
		}
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		name := Variable(flag.Name)
		if value, there := os.LookupEnv(name); there && !flag.Changed && flag.Name != "help" && flag.Name != "version" {
			set(flag, value, name)
		}
	})
	file := cmd.Flag(Flag)
	if file == nil || file.Value.String() == "" {
		return errors.Join(errs...)
	}
	path := file.Value.String()
	values, err := read(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", Flag, err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		// One file serves every command: a setting of another one is fine.
		flag := cmd.Flags().Lookup(name)
		switch {
		case flag == nil && !known(cmd.Root(), name):
			errs = append(errs, fmt.Errorf("%s: unknown key %q; the keys are names of flags without the dashes", path, name))
		case flag != nil && !flag.Changed:
			set(flag, values[name], path+": "+name)
		}
	}
	return errors.Join(errs...)
}

// known reports whether cmd or one below it has a flag.
func known(cmd *cobra.Command, flag string) bool {
	return cmd.Flags().Lookup(flag) != nil || cmd.PersistentFlags().Lookup(flag) != nil ||
		slices.ContainsFunc(cmd.Commands(), func(sub *cobra.Command) bool { return known(sub, flag) })
}

// read returns the file's values in the form in which flags take them.
func read(path string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	var raw map[string]any
	if err := yaml.UnmarshalStrict(data, &raw); err != nil {
		return nil, fmt.Errorf("%s is not a YAML file of flag names and values: %w", path, err)
	}
	values := make(map[string]string, len(raw))
	for name, value := range raw {
		if list, ok := value.([]any); ok {
			words := make([]string, len(list))
			for i, v := range list {
				words[i] = fmt.Sprint(v)
			}
			value = strings.Join(words, ",")
		}
		values[name] = fmt.Sprint(value)
	}
	return values, nil
}
