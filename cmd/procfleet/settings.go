package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// environmentName returns the variable of a flag: nats-listen is
// PROCFLEET_NATS_LISTEN.
func environmentName(flag string) string {
	return "PROCFLEET_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fillFlags sets the flags that were not given from the environment, then
// those still unset from the --config file.
func fillFlags(cmd *cobra.Command) error {
	var errs []error
	set := func(flag *pflag.Flag, value, source string) {
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", source, err))
		}
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		name := environmentName(flag.Name)
		if value, there := os.LookupEnv(name); there && !flag.Changed && flag.Name != "help" {
			set(flag, value, name)
		}
	})
	path := cmd.Flag("config").Value.String()
	file, err := readSettings(path)
	if err != nil {
		return usageError("--config: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(file)) {
		// One file serves every command: a setting of another one is fine.
		if flag := cmd.Flags().Lookup(name); flag != nil && !flag.Changed {
			set(flag, file[name], path+": "+name)
		}
	}
	if len(errs) > 0 {
		return usageError("%w", errors.Join(errs...))
	}
	return nil
}

func readSettings(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var raw map[string]any
	if err := yaml.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	settings := make(map[string]string, len(raw))
	for name, value := range raw {
		if list, ok := value.([]any); ok {
			words := make([]string, len(list))
			for i, v := range list {
				words[i] = fmt.Sprint(v)
			}
			value = strings.Join(words, ",")
		}
		settings[name] = fmt.Sprint(value)
	}
	return settings, nil
}
